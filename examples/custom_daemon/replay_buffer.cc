#include "examples/custom_daemon/replay_buffer.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::examples {
namespace {

constexpr int64_t kMaxDrawn = 1'000'000;

}  // namespace

absl::Status ReplayBuffer::CheckSample(const Tensor& sample) const {
  if (sample.rank() != 1 || sample.dtype() != DType::kF32) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sample is a tensor f32[n], not ", sample.ToString()));
  }
  if (!samples_.empty() && sample.shape() != samples_[0].shape()) {
    return absl::InvalidArgumentError(absl::StrCat("samples here are ", samples_[0].ToString(),
                                                   ", and this one is ", sample.ToString()));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ReplayBuffer::Append(const Tensor& sample) {
  int64_t size = 0;
  std::vector<Waiter> served;
  {
    MutexLock lock(mutex_);
    PSD_RETURN_IF_ERROR(CheckSample(sample));
    if (samples_.size() < capacity_) {
      samples_.push_back(sample);
    } else {
      samples_[next_] = sample;
      next_ = (next_ + 1) % capacity_;
    }
    size = static_cast<int64_t>(samples_.size());
    served = TakeServed();
  }
  // The lock is released by now, because setting a future may run any callback.
  for (const Waiter& waiter : served) waiter.filled.Set(Values{size});
  return size;
}

std::vector<ReplayBuffer::Waiter> ReplayBuffer::TakeServed() {
  const auto first = std::partition(
      waiters_.begin(), waiters_.end(),
      [held = samples_.size()](const Waiter& waiter) { return waiter.count > held; });
  std::vector<Waiter> served(std::make_move_iterator(first),
                             std::make_move_iterator(waiters_.end()));
  waiters_.erase(first, waiters_.end());
  return served;
}

absl::StatusOr<Tensor> ReplayBuffer::Sample(int64_t count, int64_t seed) const {
  if (count < 1 || count > kMaxDrawn) {
    return absl::InvalidArgumentError(
        absl::StrCat("a draw of ", count, " samples; draw 1 to ", kMaxDrawn));
  }
  PSD_ASSIGN_OR_RETURN(const std::vector<Tensor> drawn, Draw(count, seed));
  const int64_t length = drawn[0].NumElements();
  PSD_ASSIGN_OR_RETURN(Tensor samples, Tensor::Empty({count, length}, DType::kF32));
  float* to = samples.mutable_data<float>();
  for (const Tensor& sample : drawn) to = std::copy_n(sample.data<float>(), length, to);
  return samples;
}

absl::StatusOr<std::vector<Tensor>> ReplayBuffer::Draw(int64_t count, int64_t seed) const {
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  std::vector<Tensor> drawn;
  MutexLock lock(mutex_);
  if (samples_.empty()) {
    return absl::FailedPreconditionError("no sample is here yet; call replay_buffer.when_filled");
  }
  for (int64_t i = 0; i < count; ++i) drawn.push_back(samples_[random() % samples_.size()]);
  return drawn;
}

Future<Values> ReplayBuffer::WhenFilled(int64_t count) {
  if (count < 0 || static_cast<size_t>(count) > capacity_) {
    return Future<Values>::Ready(absl::InvalidArgumentError(
        absl::StrCat("it never holds ", count, " samples: its capacity is ", capacity_)));
  }
  MutexLock lock(mutex_);
  if (samples_.size() >= static_cast<size_t>(count)) {
    return Future<Values>::Ready(Values{static_cast<int64_t>(samples_.size())});
  }
  waiters_.push_back({static_cast<size_t>(count), {}});
  return waiters_.back().filled.future();
}

}  // namespace psd::examples
