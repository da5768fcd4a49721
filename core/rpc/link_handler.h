#pragma once

// Passes the events of one link from the carrier to the agent.

#include <atomic>
#include <memory>
#include <utility>

#include "core/carrier/carrier.h"
#include "core/rpc/agent_core.h"

namespace psd::rpc {

// Owned by the carrier. Refers to the agent weakly, so that a link does not keep its agent alive.
class LinkHandler : public carrier::LinkHandler {
 public:
  explicit LinkHandler(std::weak_ptr<AgentCore> core) : core_(std::move(core)) {}

  // Sets the link's id. Must be called before the first message.
  void Bind(LinkId link) { link_.store(link); }
  // True once OnClosed was called, which may happen before Bind.
  bool closed() const { return closed_.load(); }

  void OnMessage(carrier::Message message) override {
    if (auto core = core_.lock()) core->OnMessage(link_.load(), std::move(message));
  }
  void OnRefused(std::string header, absl::Status why) override {
    if (auto core = core_.lock()) core->OnRefused(link_.load(), std::move(header), why);
  }
  void OnClosed(absl::Status reason) override {
    closed_.store(true);
    if (auto core = core_.lock()) core->OnClosed(link_.load(), reason);
  }

 private:
  const std::weak_ptr<AgentCore> core_;
  std::atomic<bool> closed_{false};
  std::atomic<LinkId> link_{0};  // 0: not set yet
};

}  // namespace psd::rpc
