#pragma once

// A carrier whose links send every large buffer from a segment, so that messages are lent.

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/carrier/carrier.h"
#include "core/carrier/shm/lending/limits.h"
#include "tests/core/carrier/lending/segment_buffer.h"

namespace psd::carrier {

// Copies buffers that are large enough to be lent into segments.
inline void MoveToSegments(Message& message) {
  for (Buffer& buffer : message.buffers) {
    if (buffer.size() < kLeastLentBytes) continue;
    const std::shared_ptr<SharedSegment> segment = NewSegment(buffer.size());
    std::memcpy(segment->data(), buffer.data(), buffer.size());
    buffer = SliceOf(segment, 0, buffer.size());
  }
}

// Passes everything on to a link of the shared-memory carrier. Thread-safe.
class LendingLink : public Link {
 public:
  explicit LendingLink(std::shared_ptr<Link> inner) : inner_(std::move(inner)) {}

  absl::Status Send(Message message) override {
    MoveToSegments(message);
    return inner_->Send(std::move(message));
  }
  void HelpUntil(absl::FunctionRef<bool()> done) override { inner_->HelpUntil(done); }
  void Close() override { inner_->Close(); }
  std::string Description() const override { return inner_->Description(); }
  SharedTraffic shared_traffic() const override { return inner_->shared_traffic(); }

 private:
  const std::shared_ptr<Link> inner_;  // shared with its carrier
};

// Thread-safe.
class LendingCarrier : public Carrier {
 public:
  explicit LendingCarrier(std::shared_ptr<Carrier> inner) : inner_(std::move(inner)) {}

  std::string Name() const override { return "lending"; }
  absl::StatusOr<std::string> Listen(const std::string& address, AcceptCallback accept) override {
    return inner_->Listen(address, [accept = std::move(accept)](std::shared_ptr<Link> link) {
      return accept(std::make_shared<LendingLink>(std::move(link)));
    });
  }
  void Connect(const std::string& address, absl::Duration timeout,
               std::shared_ptr<LinkHandler> handler, ConnectCallback done) override {
    inner_->Connect(address, timeout, std::move(handler),
                    [done = std::move(done)](absl::StatusOr<std::shared_ptr<Link>> link) mutable {
                      if (link.ok()) link = std::make_shared<LendingLink>(*std::move(link));
                      done(std::move(link));
                    });
  }
  SharedTraffic shared_traffic() const override { return inner_->shared_traffic(); }
  void Shutdown() override { inner_->Shutdown(); }

 private:
  const std::shared_ptr<Carrier> inner_;
};

}  // namespace psd::carrier
