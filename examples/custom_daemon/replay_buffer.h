#pragma once

// An object that lives on its owner: many workers append samples to it and draw samples from it.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/psd.h"
#include "core/base/mutex.h"

namespace psd::examples {

// Keeps the last `capacity` samples, which are one-dimensional f32 tensors of one length.
// Thread-safe, as every object must be, because calls of its methods run at the same time.
class ReplayBuffer : public Object {
 public:
  explicit ReplayBuffer(int64_t capacity) : capacity_(static_cast<size_t>(capacity)) {}
  std::string TypeName() const override { return "replay_buffer"; }

  // Adds a sample. Returns the number of samples that the buffer then holds. Errors:
  // INVALID_ARGUMENT for a tensor that is not a sample.
  absl::StatusOr<int64_t> Append(const Tensor& sample) PSD_EXCLUDES(mutex_);

  // Returns `count` samples drawn with replacement, as [count, length]. The same seed and contents
  // give the same samples.
  // Errors: FAILED_PRECONDITION while it is empty; INVALID_ARGUMENT for a count below 1.
  absl::StatusOr<Tensor> Sample(int64_t count, int64_t seed) const PSD_EXCLUDES(mutex_);

  // Returns a future that is set to the number of samples once the buffer holds at least `count`.
  // No thread waits meanwhile.
  Future<Values> WhenFilled(int64_t count) PSD_EXCLUDES(mutex_);

 private:
  struct Waiter {
    size_t count = 0;
    Promise<Values> filled;
  };
  absl::Status CheckSample(const Tensor& sample) const PSD_REQUIRES(mutex_);
  absl::StatusOr<std::vector<Tensor>> Draw(int64_t count, int64_t seed) const PSD_EXCLUDES(mutex_);
  // Removes and returns the waiters whose count is reached.
  std::vector<Waiter> TakeServed() PSD_REQUIRES(mutex_);

  const size_t capacity_;
  mutable Mutex mutex_;  // leaf
  std::vector<Tensor> samples_ PSD_GUARDED_BY(mutex_);
  size_t next_ PSD_GUARDED_BY(mutex_) = 0;  // the index of the next sample when the buffer is full
  std::vector<Waiter> waiters_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::examples
