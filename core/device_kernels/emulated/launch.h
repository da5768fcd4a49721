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

}  // namespace psd::emulated
