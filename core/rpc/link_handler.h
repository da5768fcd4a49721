#pragma once

// What a carrier calls for one of the agent's links.

#include <atomic>
#include <memory>
#include <utility>

#include "core/carrier/carrier.h"
#include "core/rpc/agent_core.h"

namespace psd::rpc {

// Kept by the carrier. Knows the agent weakly: a link does not keep its agent alive.
class LinkHandler : public carrier::LinkHandler {
 public:
  explicit LinkHandler(std::weak_ptr<AgentCore> core) : core_(std::move(core)) {}

  // Before the first message.
  void Bind(LinkId link) { link_.store(link); }
  // True once OnClosed came, which may be before Bind.
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
  std::atomic<LinkId> link_{0};  // 0: not established yet
};

}  // namespace psd::rpc
