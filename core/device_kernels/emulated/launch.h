#pragma once

// What the kernels of emulated devices share.

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/device/emulated/device_array.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device/emulated/emulated_stream.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/block_rows.h"

namespace psd::emulated {

// Adds a kernel to the stream; see EmulatedStream::Launch. The kernels of a table cannot return an
// error, so a device that refuses one is lost, which the stream's next event reports.
template <typename Body, typename... Arguments>
void AddKernel(Stream* stream, const char* kernel, size_t count, Body body,
               Arguments... arguments) {
  if (count == 0) return;
  const absl::Status added =
      static_cast<EmulatedStream*>(stream)->Launch(kernel, count, body, std::move(arguments)...);
  PSD_CHECK(!absl::IsInvalidArgument(added), added.message());
  if (!added.ok()) static_cast<EmulatedDevice&>(stream->device()).Lose(added.message());
}

// Returns `size` elements from a typed address on.
template <typename T>
DeviceArray<T> ArrayAt(T* address, size_t size) {
  return {address, size};
}
// As the argument `make` of the functions in kernels/cuda.
inline constexpr auto kMake = [](auto* address, size_t size) { return ArrayAt(address, size); };

struct RunElement {
  template <class Body>
  void operator()(size_t i, const Body& body) const {
    body(i);
  }
};
// Returns what adds the kernel of a body of elements to the stream (kernels/cuda/operators.h).
inline auto RunOn(Stream* stream, const char* name) {
  return [stream, name](const auto& body, size_t count) {
    AddKernel(stream, name, count, RunElement(), body);
  };
}

struct RunBlock {
  template <class Body>
  void operator()(size_t index, const Body& body) const {
    kernels::cuda::RowShared shared;
    body(kernels::cuda::SerialBlock(index), index, shared);
  }
};
// As RunOn, for a body of blocks (kernels/cuda/softmax.h).
inline auto RunBlocksOn(Stream* stream, const char* name) {
  return [stream, name](const auto& body, size_t blocks) {
    AddKernel(stream, name, blocks, RunBlock(), body);
  };
}

}  // namespace psd::emulated
