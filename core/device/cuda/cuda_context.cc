#include "core/device/cuda/cuda_context.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "core/base/executor.h"
#include "core/base/status.h"
#include "core/device/cuda/cuda_errors.h"
#include "core/device/device_errors.h"

namespace psd::cuda {
namespace {

// More events than are in use at once in ordinary work. Making one takes some microseconds.
constexpr size_t kMostUnusedEvents = 1024;

}  // namespace

CudaContext::~CudaContext() {
  if (!Enter().ok()) return;  // the events ended with the device
  for (CUevent_st* event : unused_) cudaEventDestroy(event);
}

absl::Status CudaContext::Enter() {
  PSD_RETURN_IF_ERROR(health());
  return Check(cudaSetDevice(index_), "cudaSetDevice");
}

absl::Status CudaContext::Check(int error, absl::string_view operation) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  if (KindOf(error) == ErrorKind::kLost) return Lose(FailureOf(error, operation));
  return StatusOf(error, name_, operation);
}

absl::Status CudaContext::Probe(CUstream_st* stream, absl::string_view operation) {
  const int error = cudaStreamQuery(stream);
  cudaGetLastError();  // that of the call, too
  return error == cudaErrorNotReady ? absl::OkStatus() : Check(error, operation);
}

size_t CudaContext::FreeBytes() {
  size_t free = 0, total = 0;
  return Check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo").ok() ? free : 0;
}

absl::Status CudaContext::Lose(absl::string_view reason) {
  {
    MutexLock lock(mutex_);
    if (loss_.empty()) loss_ = std::string(reason);
  }
  return health();
}

absl::Status CudaContext::health() const {
  const std::string reason = loss();
  return reason.empty() ? absl::OkStatus() : DeviceLost(name_, reason);
}

std::string CudaContext::loss() const {
  MutexLock lock(mutex_);
  return loss_;
}

absl::StatusOr<std::shared_ptr<Mark>> CudaContext::MarkIn(CUstream_st* stream) {
  PSD_RETURN_IF_ERROR(Enter());
  PSD_ASSIGN_OR_RETURN(CUevent_st* const event, TakeEvent());
  const absl::Status recorded = Check(cudaEventRecord(event, stream), "cudaEventRecord");
  if (!recorded.ok()) {
    GiveEvent(event);
    return recorded;
  }
  return std::make_shared<Mark>(shared_from_this(), event);
}

absl::StatusOr<CUevent_st*> CudaContext::TakeEvent() {
  {
    MutexLock lock(mutex_);
    if (!unused_.empty()) {
      CUevent_st* const event = unused_.back();
      unused_.pop_back();
      return event;
    }
  }
  CUevent_st* event = nullptr;
  PSD_RETURN_IF_ERROR(
      Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
            "cudaEventCreateWithFlags"));
  return event;
}

// An event may be recorded again while streams still wait for its old mark: a wait means the mark
// that the event had when the wait was added.
void CudaContext::GiveEvent(CUevent_st* event) {
  {
    MutexLock lock(mutex_);
    if (!loss_.empty()) return;  // the event ended with the device
    if (unused_.size() < kMostUnusedEvents) {
      unused_.push_back(event);
      return;
    }
  }
  if (Enter().ok()) static_cast<void>(Check(cudaEventDestroy(event), "cudaEventDestroy"));
}

bool Mark::passed() {
  if (state_ != State::kPending) return true;
  if (!context_->Enter().ok()) return Note(cudaErrorUnknown);
  return Note(cudaEventQuery(event_));
}

absl::Status Mark::Wait() {
  if (state_ == State::kPending && !passed()) {
    const ScopedBlocking blocking;
    Note(cudaEventSynchronize(event_));
  }
  return state_ == State::kDone ? absl::OkStatus() : context_->health();
}

bool Mark::Note(int error) {
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  const absl::Status asked = context_->Check(error, "work that was added earlier");
  // If CUDA cannot answer, nobody can know what became of the work.
  if (!asked.ok()) static_cast<void>(context_->Lose(asked.message()));
  State pending = State::kPending;
  state_.compare_exchange_strong(pending, asked.ok() ? State::kDone : State::kFailed);
  return true;
}

}  // namespace psd::cuda
