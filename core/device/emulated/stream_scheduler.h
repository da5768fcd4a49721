#pragma once

// Runs the operations of emulated streams, late and out of step.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/device/emulated/quiet_ptr.h"
#include "core/device/stream_pool.h"

namespace psd::emulated {

// The streams of one or several emulated devices. Each has a thread. Nothing runs until somebody
// waits for it. Then one operation runs at a time, and the seed decides which is next: with seed 0
// only operations that somebody waits for, directly or through events; with any other seed often
// also operations of any other stream. So work whose order nobody asked for happens too late with
// some seeds and too early with others, whatever the speed of the machine. Thread-safe.
class StreamScheduler {
 public:
  // Errors: RESOURCE_EXHAUSTED if the system refuses a thread.
  static absl::StatusOr<QuietPtr<StreamScheduler>> Create(uint64_t seed);
  // Runs everything that is left. Requires: no operation and no completion calls it.
  ~StreamScheduler();
  StreamScheduler(const StreamScheduler&) = delete;
  StreamScheduler& operator=(const StreamScheduler&) = delete;

  // Adds a stream and returns its number. Errors: RESOURCE_EXHAUSTED if the system refuses a
  // thread.
  absl::StatusOr<uint32_t> AddStream();
  // Adds an operation to a stream and returns the point behind it. The operation begins after the
  // points `after` have passed. Does not wait.
  StreamPoint Add(uint32_t stream, absl::AnyInvocable<void()> run,
                  std::vector<StreamPoint> after = {});
  // Waits while the stream has kMostQueued operations or more, so that a thread which only adds
  // work is held up. Operations and completions are not held up.
  void WaitForRoom(uint32_t stream);
  bool passed(StreamPoint point) const;
  // Makes the streams work until `point` has passed, without waiting for it.
  void Demand(StreamPoint point);
  // Waits until `point` has passed. Requires: no operation and no completion calls it.
  void Wait(StreamPoint point);
  // How many threads wait at this moment, for work, for room, or for completions.
  size_t waiting() const;
  // The points that the streams have passed.
  std::vector<StreamPoint> Done() const;
  // Waits until all operations that have been added to any stream are done, all completions have
  // been called, and all is done that completions have added meanwhile. The caller is then ordered
  // behind all of this. Requires: no operation and no completion calls it.
  void WaitForAll();
  // Calls `then` exactly once, on the thread for completions, when `point` has passed.
  void OnPassed(StreamPoint point, absl::AnyInvocable<void()> then);
  // As OnPassed, when all work is done that the streams have now. Requires: at least one stream.
  void CallBehind(const std::vector<uint32_t>& streams, absl::AnyInvocable<void()> then);

  // Returns a number that depends on the seed and on how often this was called.
  uint64_t Draw();

  static constexpr size_t kMostQueued = 1024;

 private:
  struct Operation {
    absl::AnyInvocable<void()> run;
    std::vector<StreamPoint> after;
  };
  struct Queue {
    std::thread thread;
    CondVar turn;
    std::deque<std::unique_ptr<Operation>> operations;
    uint64_t added = 0;
    uint64_t passed = 0;
    uint64_t demanded = 0;  // the position that somebody waits for
  };
  struct Completion {
    uint64_t number = 0;
    StreamPoint point;
    absl::AnyInvocable<void()> then;
  };

  explicit StreamScheduler(uint64_t seed);
  // The threads. `queue` is that of `stream`.
  void RunStream(uint32_t stream, Queue& queue) PSD_EXCLUDES(mutex_);
  void RunCompletions() PSD_EXCLUDES(mutex_);
  bool HasPassed(StreamPoint point) const PSD_REQUIRES(mutex_);
  void DemandLocked(StreamPoint point) PSD_REQUIRES(mutex_);
  void WaitLocked(StreamPoint point) PSD_REQUIRES(mutex_);
  // Waits until all completions whose numbers are below `end` have been called.
  void WaitForCompletions(uint64_t end) PSD_REQUIRES(mutex_);
  // Counts work that this thread adds, if it runs completions.
  void CountChained() PSD_REQUIRES(mutex_);
  // Ends the process if this thread runs operations or completions, which would wait for ever.
  void CheckMayWait() const;
  // Gives a stream the turn, if none has it and somebody waits.
  void Choose() PSD_REQUIRES(mutex_);
  bool IsBlocked(const Queue& queue) const PSD_REQUIRES(mutex_);
  // Adds to `ready` the streams that can go on and must, so that `stream` gets on.
  void FindNeeded(uint32_t stream, std::vector<bool>& seen, std::vector<uint32_t>& ready) const
      PSD_REQUIRES(mutex_);

  const bool restless_;  // also runs operations that nobody waits for
  mutable Mutex mutex_;  // leaf
  CondVar progress_;     // an operation or a completion has ended, or a completion was added
  std::mt19937_64 random_ PSD_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Queue>> queues_ PSD_GUARDED_BY(mutex_);
  std::optional<uint32_t> turn_ PSD_GUARDED_BY(mutex_);  // the stream whose operation runs
  std::deque<std::unique_ptr<Completion>> completions_ PSD_GUARDED_BY(mutex_);  // by number
  std::optional<uint64_t> completing_ PSD_GUARDED_BY(mutex_);  // the one that is being called
  uint64_t next_completion_ PSD_GUARDED_BY(mutex_) = 0;
  uint64_t chained_ PSD_GUARDED_BY(mutex_) = 0;  // what completions have added
  bool stopping_ PSD_GUARDED_BY(mutex_) = false;
  size_t waiting_ PSD_GUARDED_BY(mutex_) = 0;
  std::thread completion_thread_;
};

}  // namespace psd::emulated
