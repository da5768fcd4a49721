#pragma once

// Bounds how many functions hold a thread that started before their arguments were made.

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "core/base/mutex.h"

namespace psd::services {

// A function may wait for an argument that is being made, with a thread, and what is to make the
// argument needs a thread too. So at most kMost functions that started early have a thread; further
// ones start when one of those has given its thread back, or when their arguments are made.
// Thread-safe. Held by a shared_ptr, because the leaves refer to it.
class EarlyStarts : public std::enable_shared_from_this<EarlyStarts> {
 public:
  static constexpr int kMost = 64;  // fewer than the threads that a pool adds for waiting functions

  // A function that may start early or when its arguments are made, whichever comes first.
  class Candidate;
  // Leave to have a thread; given back when the last copy is destroyed.
  using Leave = std::shared_ptr<void>;
  // Starts the function, or ends the call with an error. The leave is null unless it starts early.
  using Start = std::function<void(const absl::Status&, Leave)>;

  // Starts the function as soon as there is leave, unless the candidate has been told before that
  // its arguments are made. Returns null if the function was started at once. A candidate that is
  // dropped does not start.
  std::shared_ptr<Candidate> Add(Start start) PSD_EXCLUDES(mutex_);

 private:
  static constexpr size_t kLeastSweep = 1024;

  void GiveBack() PSD_EXCLUDES(mutex_);
  void StartWaiting() PSD_EXCLUDES(mutex_);

  Mutex mutex_;  // leaf
  int free_ PSD_GUARDED_BY(mutex_) = kMost;
  bool starting_ PSD_GUARDED_BY(mutex_) = false;  // a thread is in StartWaiting
  // Those that were dropped or that have started meanwhile are swept out when there are sweep_at_.
  std::deque<std::weak_ptr<Candidate>> waiting_ PSD_GUARDED_BY(mutex_);
  size_t sweep_at_ PSD_GUARDED_BY(mutex_) = kLeastSweep;
};

class EarlyStarts::Candidate {
 public:
  explicit Candidate(Start start) : start_(std::move(start)) {}

  // Tells that the arguments are made, or why they never will be.
  void ArgumentsMade(const absl::Status& status) { Begin(status, nullptr); }

 private:
  friend class EarlyStarts;
  bool started() const PSD_EXCLUDES(mutex_);
  void Begin(const absl::Status& status, Leave leave) PSD_EXCLUDES(mutex_);

  mutable Mutex mutex_;                 // leaf
  Start start_ PSD_GUARDED_BY(mutex_);  // null once it was called
};

}  // namespace psd::services
