#include "core/device/cuda/cuda_stream.h"

#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/executor.h"
#include "core/base/status.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/cuda_errors.h"
#include "core/device/cuda/cuda_event.h"
#include "core/device/device_errors.h"

namespace psd {

using cuda::CudaContext;
using cuda::Mark;

CudaStream::CudaStream(CudaDevice& device, CUstream_st* handle, std::string name)
    : Stream(std::move(name)), device_(device), handle_(handle) {}

CudaStream::~CudaStream() {
  CudaContext& context = device_.context();
  if (context.Enter().ok())
    static_cast<void>(context.Check(cudaStreamDestroy(handle_), "cudaStreamDestroy"));
}

Device& CudaStream::device() const {
  return device_;
}

absl::StatusOr<std::shared_ptr<Event>> CudaStream::Record() {
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Mark> mark, device_.context().MarkIn(handle_));
  return std::make_shared<CudaEvent>(device_, std::move(mark), device_.completions());
}

absl::Status CudaStream::WaitFor(const std::shared_ptr<Event>& event) {
  const auto* const known = dynamic_cast<const CudaEvent*>(event.get());
  return known == nullptr ? OtherKindOfEvent(name()) : WaitForMark(known->mark());
}

absl::Status CudaStream::WaitForMark(const Mark& mark) {
  CudaContext& context = device_.context();
  PSD_RETURN_IF_ERROR(context.Enter());
  if (&mark.context() == &context)
    return context.Check(cudaStreamWaitEvent(handle_, mark.event(), cudaEventWaitDefault),
                         "cudaStreamWaitEvent");
  if (!mark.context().health().ok()) return absl::OkStatus();
  const int error = cudaStreamWaitEvent(handle_, mark.event(), cudaEventWaitDefault);
  if (error == cudaSuccess) return absl::OkStatus();
  CudaContext& blamed = BlamedFor(error, mark.context());
  const absl::Status added = blamed.Check(error, "cudaStreamWaitEvent");
  return &blamed == &context ? added : absl::OkStatus();  // only the event tells of another's loss
}

CudaContext& CudaStream::BlamedFor(int error, CudaContext& other) {
  CudaContext& own = device_.context();
  if (!own.Probe(handle_, "work that was added earlier").ok() ||
      cuda::KindOf(error) != cuda::ErrorKind::kLost)
    return own;
  // Any call that concerns a lost device fails. One of which CUDA reports nothing must not be lost
  // for what another one did.
  if (other.Enter().ok()) static_cast<void>(other.FreeBytes());
  return other.health().ok() ? own : other;
}

absl::StatusOr<std::shared_ptr<Block>> CudaStream::Allocate(size_t bytes) {
  return device_.Allocate(*this, bytes);
}

absl::Status CudaStream::AlsoUses(const Block& block) {
  return device_.device_memory().AlsoUses(*this, block);
}

absl::Status CudaStream::WaitForUsers(const Block& block) {
  PSD_RETURN_IF_ERROR(device_.health());
  return device_.device_memory().WaitForUsers(*this, block);
}

absl::Status CudaStream::CopyIn(std::byte* to, const std::byte* pinned, size_t bytes) {
  if (bytes == 0) return device_.health();
  PSD_RETURN_IF_ERROR(CheckAddress("CopyIn", to, bytes));
  PSD_RETURN_IF_ERROR(CheckPinned("CopyIn", pinned, bytes));
  return Add("CopyIn", [=](CUstream_st* stream) {
    return cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, stream);
  });
}

absl::Status CudaStream::CopyOut(std::byte* pinned, const std::byte* from, size_t bytes) {
  if (bytes == 0) return device_.health();
  PSD_RETURN_IF_ERROR(CheckAddress("CopyOut", from, bytes));
  PSD_RETURN_IF_ERROR(CheckPinned("CopyOut", pinned, bytes));
  return Add("CopyOut", [=](CUstream_st* stream) {
    return cudaMemcpyAsync(pinned, from, bytes, cudaMemcpyDeviceToHost, stream);
  });
}

absl::Status CudaStream::CopyFrom(std::byte* to, Device& from_device, const std::byte* from,
                                  size_t bytes) {
  auto* const source = dynamic_cast<CudaDevice*>(&from_device);
  if (source == nullptr) return NoDirectCopy(name(), from_device);
  PSD_RETURN_IF_ERROR(source->health());
  if (bytes == 0) return device_.health();
  PSD_RETURN_IF_ERROR(CheckAddress("CopyFrom", to, bytes));
  PSD_RETURN_IF_ERROR(source->default_stream().CheckAddress("CopyFrom", from, bytes));
  if (source == &device_) {
    return Add("CopyFrom", [=](CUstream_st* stream) {
      return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    });
  }
  CudaContext& context = device_.context();
  PSD_RETURN_IF_ERROR(context.Enter());
  const int error =
      cudaMemcpyPeerAsync(to, context.index(), from, source->context().index(), bytes, handle_);
  if (error == cudaSuccess) return absl::OkStatus();
  return BlamedFor(error, source->context()).Check(error, absl::StrCat("CopyFrom on ", name()));
}

absl::Status CudaStream::CopyInAndWait(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 0) return device_.health();
  PSD_RETURN_IF_ERROR(CheckAddress("CopyIn", to, bytes));
  const ScopedBlocking blocking;  // a copy from memory that is not pinned waits here already
  PSD_RETURN_IF_ERROR(Add("CopyIn", [=](CUstream_st* stream) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream);
  }));
  return WaitForAll();
}

absl::Status CudaStream::CopyOutAndWait(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 0) return device_.health();
  PSD_RETURN_IF_ERROR(CheckAddress("CopyOut", from, bytes));
  const ScopedBlocking blocking;
  PSD_RETURN_IF_ERROR(Add("CopyOut", [=](CUstream_st* stream) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream);
  }));
  return WaitForAll();
}

absl::Status CudaStream::WaitForAll() {
  CudaContext& context = device_.context();
  const absl::StatusOr<std::shared_ptr<Mark>> mark = context.MarkIn(handle_);
  if (mark.ok()) return (*mark)->Wait();
  // There is no memory for an event, but the work may still use the host's bytes.
  const ScopedBlocking blocking;
  PSD_RETURN_IF_ERROR(context.Enter());
  return context.Check(cudaStreamSynchronize(handle_), "cudaStreamSynchronize");
}

absl::Status CudaStream::Add(absl::string_view operation,
                             absl::FunctionRef<int(CUstream_st*)> launch) {
  PSD_RETURN_IF_ERROR(device_.context().Enter());
  return device_.context().Check(launch(handle_), absl::StrCat(operation, " on ", name()));
}

absl::Status CudaStream::AddWithTable(absl::string_view operation, size_t bytes,
                                      absl::FunctionRef<void(void*)> fill,
                                      absl::FunctionRef<int(const void*, CUstream_st*)> launch) {
  const auto add = [&](const std::byte* table) {
    return Add(operation, [&](CUstream_st* stream) { return launch(table, stream); });
  };
  cuda::DeviceMemory& memory = device_.device_memory();
  const absl::StatusOr<std::byte*> table = memory.AllocateScratch(*this, bytes);
  if (!table.ok()) {
    if (!absl::IsResourceExhausted(table.status())) return table.status();
    absl::StatusOr<std::shared_ptr<Block>> pinned = device_.pinned_memory().Allocate(bytes);
    if (!pinned.ok()) return table.status();
    fill((*pinned)->data());
    PSD_RETURN_IF_ERROR(add((*pinned)->data()));
    return Keep(*std::move(pinned));
  }
  absl::Status status = CopyTable(*table, bytes, fill);
  if (status.ok()) status = add(*table);
  status.Update(memory.FreeScratch(*this, *table));
  return status;
}

absl::Status CudaStream::CopyTable(std::byte* to, size_t bytes,
                                   absl::FunctionRef<void(void*)> fill) {
  const auto copy = [&](const void* from) {
    return Add("the copy of a table", [&](CUstream_st* stream) {
      return cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream);
    });
  };
  absl::StatusOr<std::shared_ptr<Block>> pinned = device_.pinned_memory().Allocate(bytes);
  if (!pinned.ok()) {
    // CUDA may read memory that is not pinned after the call has returned.
    std::vector<std::byte> table(bytes);
    fill(table.data());
    PSD_RETURN_IF_ERROR(copy(table.data()));
    return WaitForAll();
  }
  fill((*pinned)->data());
  PSD_RETURN_IF_ERROR(copy((*pinned)->data()));
  return Keep(*std::move(pinned));
}

absl::Status CudaStream::Keep(std::shared_ptr<Block> pinned) {
  const absl::StatusOr<std::shared_ptr<Event>> done = Record();
  if (!done.ok()) return WaitForAll();
  (*done)->OnPassed([kept = std::move(pinned)](const absl::Status& /*result*/) {});
  return absl::OkStatus();
}

absl::Status CudaStream::CheckAddress(absl::string_view operation, const std::byte* address,
                                      size_t bytes) const {
  if (device_.device_memory().Contains(address, bytes)) return absl::OkStatus();
  return NotInMemory(operation, name(), device_.name(), bytes);
}

absl::Status CudaStream::CheckPinned(absl::string_view operation, const std::byte* address,
                                     size_t bytes) const {
  if (device_.pinned().Contains(address, bytes)) return absl::OkStatus();
  return NotPinned(operation, name(), device_.name(), bytes);
}

}  // namespace psd
