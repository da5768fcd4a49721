#include "client/ddp/overlapped_round.h"

#include <utility>

#include "core/autograd/hooks.h"
#include "core/base/status.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/ops/sum.h"

namespace psd {

OverlappedRound::OverlappedRound(BufferedAllReduce::Round round, std::vector<BufferGroup> groups,
                                 std::vector<Tensor> before)
    : groups_(std::move(groups)),
      group_of_(before.size()),
      round_(std::move(round)),
      before_(std::move(before)),
      gradients_(before_.size()) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    incomplete_.push_back(groups_[i].parameters.size());
    for (const size_t parameter : groups_[i].parameters) group_of_[parameter] = i;
  }
}

absl::Status OverlappedRound::Watch(const std::vector<GradientPath>& paths) {
  if (!Enter()) return absl::OkStatus();
  for (size_t i = 0; i < paths.size(); ++i) {
    if (!group_of_[i].has_value() || paths[i].several) continue;
    if (paths[i].leaf == nullptr) {
      gradients_[i] = before_[i];
      --incomplete_[*group_of_[i]];
      continue;
    }
    paths[i].leaf->MutableHooks().Add(
        AccumulatedHook([self = shared_from_this(), i](const Tensor& gradient) {
          return self->OnAccumulated(i, gradient);
        }));
  }
  failure_ = StartComplete();
  const absl::Status status = failure_;
  Exit();
  return status;
}

absl::Status OverlappedRound::OnAccumulated(size_t parameter, const Tensor& gradient) {
  if (!Enter()) return absl::OkStatus();
  if (failure_.ok()) failure_ = Take(parameter, gradient);
  const absl::Status status = failure_;
  Exit();
  return status;
}

// Adds as the context does when it takes the gradient, so the sum has the same bits.
absl::Status OverlappedRound::Take(size_t parameter, const Tensor& gradient) {
  Tensor& sum = gradients_[parameter];
  if (sum.defined()) return absl::OkStatus();  // of another backward over the same leaf
  if (before_[parameter].defined()) {
    PSD_ASSIGN_OR_RETURN(sum, ops::AddToSum(before_[parameter], gradient));
  } else {
    // A gradient that came from another worker is on the host.
    PSD_ASSIGN_OR_RETURN(sum, CopyTo(groups_[*group_of_[parameter]].device, gradient));
  }
  --incomplete_[*group_of_[parameter]];
  return StartComplete();
}

absl::Status OverlappedRound::StartComplete() {
  while (round_.started() < groups_.size() && incomplete_[round_.started()] == 0) {
    PSD_ASSIGN_OR_RETURN(const bool full, round_.IsFull());
    if (full) return absl::OkStatus();  // the next gradient, or the end, looks again
    PSD_RETURN_IF_ERROR(round_.StartNext(gradients_));
  }
  return absl::OkStatus();
}

OverlappedRound::Closed OverlappedRound::Close() {
  Enter();
  Closed closed{std::move(round_), std::move(gradients_), std::move(failure_)};
  before_.clear();
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  Exit();
  return closed;
}

bool OverlappedRound::Enter() {
  MutexLock lock(mutex_);
  while (in_use_) left_.Wait(mutex_);
  if (!closed_) in_use_ = true;
  return !closed_;
}

void OverlappedRound::Exit() {
  MutexLock lock(mutex_);
  in_use_ = false;
  left_.NotifyAll();
}

}  // namespace psd
