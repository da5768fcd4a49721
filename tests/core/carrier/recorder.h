#pragma once

// A link handler that records the events of its link, and helpers that wait for events.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/carrier/carrier.h"

namespace psd::carrier {

// Only a failing test waits this long, even on a loaded machine and under a sanitizer.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// Records messages, refusals and the end of a link. Thread-safe.
class Recorder : public LinkHandler {
 public:
  // Called for every message, with the link of this recorder, before it is recorded.
  using OnMessageHook = std::function<void(Link& link, const Message& message)>;
  using OnClosedHook = std::function<void(Link& link)>;

  void SetLink(std::shared_ptr<Link> link) {
    MutexLock lock(mutex_);
    link_ = std::move(link);
    changed_.NotifyAll();
  }
  void SetOnMessage(OnMessageHook hook) {
    MutexLock lock(mutex_);
    on_message_ = std::move(hook);
  }
  void SetOnClosed(OnClosedHook hook) {
    MutexLock lock(mutex_);
    on_closed_ = std::move(hook);
  }
  // Counts later messages without keeping them.
  void CountOnly() {
    MutexLock lock(mutex_);
    count_only_ = true;
  }

  void OnMessage(Message message) override {
    OnMessageHook hook;
    {
      MutexLock lock(mutex_);
      hook = on_message_;
    }
    if (hook) hook(*WaitForLink(), message);
    MutexLock lock(mutex_);
    if (!closed_.empty()) ++after_close_;
    ++count_;
    if (!count_only_) messages_.push_back(std::move(message));
    changed_.NotifyAll();
  }

  void OnRefused(std::string header, absl::Status why) override {
    MutexLock lock(mutex_);
    refused_.emplace_back(std::move(header), std::move(why));
    changed_.NotifyAll();
  }

  void OnClosed(absl::Status reason) override {
    OnClosedHook hook;
    {
      MutexLock lock(mutex_);
      hook = on_closed_;
    }
    if (hook) hook(*WaitForLink());
    MutexLock lock(mutex_);
    closed_.push_back(std::move(reason));
    changed_.NotifyAll();
  }

  std::shared_ptr<Link> WaitForLink() {
    MutexLock lock(mutex_);
    while (link_ == nullptr && changed_.WaitFor(mutex_, kPatience)) {
    }
    return link_;
  }

  bool WaitForMessages(size_t count) {
    return WaitUntil([this, count] { return count_ >= count; });
  }
  bool WaitForRefused(size_t count) {
    return WaitUntil([this, count]() PSD_REQUIRES(mutex_) { return refused_.size() >= count; });
  }
  // The header and the reason for each message that found no room.
  std::vector<std::pair<std::string, absl::Status>> refused() const {
    MutexLock lock(mutex_);
    return refused_;
  }
  bool WaitForClosed() {
    return WaitUntil([this] { return !closed_.empty(); });
  }

  size_t count() const {
    MutexLock lock(mutex_);
    return count_;
  }
  std::vector<Message> TakeMessages() {
    MutexLock lock(mutex_);
    return std::exchange(messages_, {});
  }
  // The reasons of OnClosed, one for each call.
  std::vector<absl::Status> closed() const {
    MutexLock lock(mutex_);
    return closed_;
  }
  size_t after_close() const {
    MutexLock lock(mutex_);
    return after_close_;
  }

 private:
  template <typename Predicate>
  bool WaitUntil(Predicate predicate) {
    absl::Time end = absl::Now() + kPatience;
    MutexLock lock(mutex_);
    while (!predicate()) {
      absl::Duration left = end - absl::Now();
      if (left <= absl::ZeroDuration()) return false;
      changed_.WaitFor(mutex_, left);
    }
    return true;
  }

  mutable Mutex mutex_;
  CondVar changed_;
  OnMessageHook on_message_;
  OnClosedHook on_closed_;
  bool count_only_ = false;
  std::shared_ptr<Link> link_;
  std::vector<std::pair<std::string, absl::Status>> refused_ PSD_GUARDED_BY(mutex_);
  std::vector<Message> messages_;
  std::vector<absl::Status> closed_;
  size_t count_ = 0;
  size_t after_close_ = 0;
};

// Connects and waits for the result. If there is a link, the recorder gets it too.
inline absl::StatusOr<std::shared_ptr<Link>> ConnectAndWait(Carrier& carrier,
                                                            const std::string& address,
                                                            std::shared_ptr<Recorder> recorder,
                                                            absl::Duration timeout = kPatience) {
  struct Outcome {
    Mutex mutex;
    CondVar changed;
    std::optional<absl::StatusOr<std::shared_ptr<Link>>> result;
  };
  auto outcome = std::make_shared<Outcome>();
  carrier.Connect(address, timeout, recorder,
                  [outcome, recorder](absl::StatusOr<std::shared_ptr<Link>> link) {
                    if (link.ok()) recorder->SetLink(*link);
                    MutexLock lock(outcome->mutex);
                    outcome->result = std::move(link);
                    outcome->changed.NotifyAll();
                  });
  MutexLock lock(outcome->mutex);
  while (!outcome->result.has_value()) outcome->changed.Wait(outcome->mutex);
  return *outcome->result;
}

}  // namespace psd::carrier
