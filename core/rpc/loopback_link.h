#pragma once

// A worker's link to itself.

#include <memory>
#include <string>
#include <utility>

#include "core/carrier/carrier.h"

namespace psd::rpc {

// One of two ends. Send passes the message to the handler of the other end at once, on the sender's
// thread. Thread-safe if the handler is.
class LoopbackLink : public carrier::Link {
 public:
  explicit LoopbackLink(std::weak_ptr<carrier::LinkHandler> other_end)
      : other_end_(std::move(other_end)) {}

  absl::Status Send(carrier::Message message) override {
    auto handler = other_end_.lock();
    if (handler == nullptr) return absl::UnavailableError("the worker has shut down");
    handler->OnMessage(std::move(message));
    return absl::OkStatus();
  }
  // Does nothing: both ends exist as long as their worker.
  void Close() override {}
  std::string Description() const override { return "loopback"; }

 private:
  const std::weak_ptr<carrier::LinkHandler> other_end_;
};

}  // namespace psd::rpc
