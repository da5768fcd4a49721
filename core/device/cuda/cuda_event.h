#pragma once

// The events of CUDA devices, as psd's streams see them.

#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "core/base/completion_threads.h"
#include "core/base/device.h"
#include "core/base/stream.h"
#include "core/device/cuda/cuda_context.h"

namespace psd {

// A mark in a stream of `device`. May outlive the device: then it has passed, and OnPassed calls
// its function at once, on the calling thread. Thread-safe.
class CudaEvent : public Event, public std::enable_shared_from_this<CudaEvent> {
 public:
  CudaEvent(Device& device, std::shared_ptr<cuda::Mark> mark,
            std::shared_ptr<CompletionThreads> completions)
      : device_(&device), mark_(std::move(mark)), completions_(std::move(completions)) {}

  bool passed() const override { return mark_->passed(); }
  absl::Status Wait() override { return mark_->Wait(); }
  // Completions of one device are called in the order in which they were asked for.
  void OnPassed(absl::AnyInvocable<void(absl::Status) &&> then) override {
    completions_->OnPassed({device_, shared_from_this()}, std::move(then));
  }

  const cuda::Mark& mark() const { return *mark_; }

 private:
  Device* const device_;  // only compared: it may be gone
  const std::shared_ptr<cuda::Mark> mark_;
  const std::shared_ptr<CompletionThreads> completions_;  // shared by the device and its events
};

}  // namespace psd
