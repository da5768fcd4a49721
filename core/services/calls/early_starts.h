#pragma once

// Bounds the number of functions that hold a thread because they started before their arguments
// were made.

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "core/base/mutex.h"

namespace psd::services {

// A function may wait on its thread for an argument that is being made, and making the argument
// needs a thread too. So at most kMost functions that started early have a thread. Further ones
// start when one of those has given its thread back, or when their arguments are made. Thread-safe.
// Held by a shared_ptr, because the leaves refer to it.
class EarlyStarts : public std::enable_shared_from_this<EarlyStarts> {
 public:
  static constexpr int kMost = 64;  // fewer than the threads that a pool adds for waiting functions

  // A function that may start early or when its arguments are made, whichever comes first.
  class Candidate;
  // The permission to hold a thread. It is given back when the last copy is destroyed.
  using Leave = std::shared_ptr<void>;
  // Starts the function, or ends the call with an error. The leave is null unless it starts early.
  using Start = std::function<void(const absl::Status&, Leave)>;

  // Starts the function as soon as there is leave, unless ArgumentsMade is called before. Returns
  // null if the function was started at once. A candidate that is dropped does not start.
  std::shared_ptr<Candidate> Add(Start start) PSD_EXCLUDES(mutex_);

 private:
  static constexpr size_t kLeastSweep = 1024;

  void GiveBack() PSD_EXCLUDES(mutex_);
  void StartWaiting() PSD_EXCLUDES(mutex_);

  Mutex mutex_;  // leaf
  int free_ PSD_GUARDED_BY(mutex_) = kMost;
  bool starting_ PSD_GUARDED_BY(mutex_) = false;  // a thread is in StartWaiting
  // Candidates that were dropped or have started are removed when there are sweep_at_ of them.
  std::deque<std::weak_ptr<Candidate>> waiting_ PSD_GUARDED_BY(mutex_);
  size_t sweep_at_ PSD_GUARDED_BY(mutex_) = kLeastSweep;
};

class EarlyStarts::Candidate {
 public:
  explicit Candidate(Start start) : start_(std::move(start)) {}

  // To be called when the arguments are made, or with the reason why they never will be.
  void ArgumentsMade(const absl::Status& status) { Begin(status, nullptr); }

 private:
  friend class EarlyStarts;
  bool started() const PSD_EXCLUDES(mutex_);
  void Begin(const absl::Status& status, Leave leave) PSD_EXCLUDES(mutex_);

  mutable Mutex mutex_;                 // leaf
  Start start_ PSD_GUARDED_BY(mutex_);  // null once it was called
};

}  // namespace psd::services
