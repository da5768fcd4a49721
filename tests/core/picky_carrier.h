#pragma once

// A carrier that loses messages that it receives, has no room for them, refuses to send messages,
// or does not notice the end of a link, as a test chooses. It can also let a waiting thread receive
// messages itself.

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/carrier/carrier.h"

namespace psd::testing {

// The functions may be called on any thread. Each may be null.
struct PickyRules {
  // Returns true if a message that has arrived is to be lost. Its link stays open.
  std::function<bool(const carrier::Message&)> loses;
  // If this returns an error, a message that has arrived finds no room: its buffers are dropped.
  std::function<absl::Status(const carrier::Message&)> lacks_room;
  // If this returns an error, the message is not sent.
  std::function<absl::Status(const carrier::Message&)> refuses;
  // Returns true if the end of a link is not to be noticed.
  std::function<bool()> misses_end;
  // Receives messages on the calling thread, as Link::HelpUntil does.
  std::function<void(absl::FunctionRef<bool()> done)> helps;
};

// Applies the rules to all links of the inner carrier. Thread-safe.
class PickyCarrier : public carrier::Carrier {
 public:
  PickyCarrier(std::shared_ptr<carrier::Carrier> inner, PickyRules rules)
      : inner_(std::move(inner)), rules_(std::make_shared<const PickyRules>(std::move(rules))) {}

  std::string Name() const override { return inner_->Name(); }
  absl::StatusOr<std::string> Listen(const std::string& address,
                                     carrier::AcceptCallback accept) override {
    return inner_->Listen(
        address,
        [rules = rules_, accept = std::move(accept)](
            std::shared_ptr<carrier::Link> link) -> std::shared_ptr<carrier::LinkHandler> {
          auto handler = accept(std::make_shared<Link>(std::move(link), rules));
          if (handler == nullptr) return nullptr;
          return std::make_shared<Handler>(std::move(handler), rules);
        });
  }
  void Connect(const std::string& address, absl::Duration timeout,
               std::shared_ptr<carrier::LinkHandler> handler,
               carrier::ConnectCallback done) override {
    inner_->Connect(address, timeout, std::make_shared<Handler>(std::move(handler), rules_),
                    [rules = rules_, done = std::move(done)](
                        absl::StatusOr<std::shared_ptr<carrier::Link>> link) mutable {
                      if (!link.ok()) return done(link.status());
                      done(std::make_shared<Link>(*std::move(link), rules));
                    });
  }
  void Shutdown() override { inner_->Shutdown(); }

 private:
  using Rules = std::shared_ptr<const PickyRules>;  // shared with links and handlers

  class Link : public carrier::Link {
   public:
    Link(std::shared_ptr<carrier::Link> inner, Rules rules)
        : inner_(std::move(inner)), rules_(std::move(rules)) {}
    absl::Status Send(carrier::Message message) override {
      if (rules_->refuses != nullptr) {
        if (absl::Status refused = rules_->refuses(message); !refused.ok()) return refused;
      }
      return inner_->Send(std::move(message));
    }
    void HelpUntil(absl::FunctionRef<bool()> done) override {
      if (rules_->helps != nullptr) return rules_->helps(done);
      inner_->HelpUntil(done);
    }
    void Close() override { inner_->Close(); }
    std::string Description() const override { return inner_->Description(); }

   private:
    const std::shared_ptr<carrier::Link> inner_;  // shared with its carrier
    const Rules rules_;
  };

  class Handler : public carrier::LinkHandler {
   public:
    Handler(std::shared_ptr<carrier::LinkHandler> inner, Rules rules)
        : inner_(std::move(inner)), rules_(std::move(rules)) {}
    void OnMessage(carrier::Message message) override {
      if (rules_->loses != nullptr && rules_->loses(message)) return;
      if (rules_->lacks_room != nullptr) {
        absl::Status why = rules_->lacks_room(message);
        if (!why.ok()) return inner_->OnRefused(std::move(message.header), std::move(why));
      }
      inner_->OnMessage(std::move(message));
    }
    void OnRefused(std::string header, absl::Status why) override {
      inner_->OnRefused(std::move(header), std::move(why));
    }
    void OnClosed(absl::Status reason) override {
      if (rules_->misses_end != nullptr && rules_->misses_end()) return;
      inner_->OnClosed(std::move(reason));
    }

   private:
    const std::shared_ptr<carrier::LinkHandler> inner_;  // shared with its user
    const Rules rules_;
  };

  const std::shared_ptr<carrier::Carrier> inner_;  // shared with its creator
  const Rules rules_;
};

}  // namespace psd::testing
