#pragma once

// Sizes, elements, times and the check of results, shared by all cases on devices.

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/tensor/tensor.h"

namespace psd::bench {

// Whether the device is emulated, so that sizes must be tiny.
bool IsEmulated(const Device& device);
// Returns `full` for a GPU, and `tiny` for an emulated device.
template <typename T>
T SizeOn(const Device& device, T full, T tiny) {
  return IsEmulated(device) ? tiny : full;
}

// Returns element number `i` of tensors of these cases: a number in [0.5, 0.75]. The numbers repeat
// after kPatternPeriod elements.
inline constexpr size_t kPatternPeriod = 251;
inline float PatternAt(size_t i) {
  return 0.5f + 1e-3f * static_cast<float>(i % kPatternPeriod);
}
// Returns PatternAt(i) * scale for all elements of the shape, on the device or, if that is null, on
// the host.
absl::StatusOr<Tensor> Pattern(Device* device, const Shape& shape, float scale = 1);

// Returns the address of a float of a contiguous tensor on a device.
inline const float* FloatAt(const Tensor& tensor, size_t index = 0) {
  return reinterpret_cast<const float*>(tensor.address()) + index;
}
// Requires: as Tensor::mutable_address.
inline float* MutableFloatAt(Tensor& tensor, size_t index = 0) {
  return reinterpret_cast<float*>(tensor.mutable_address()) + index;
}

// Returns `count` floats of a contiguous tensor on a device, from `first` on. Waits for the device.
absl::StatusOr<std::vector<float>> ReadFloats(const Tensor& tensor, size_t first, size_t count);

// Errors: INTERNAL naming `what`, the index and both numbers, unless all numbers of `got` differ
// from those of `want` by at most 1e-5, or 1e-5 of numbers above 1; NaN differs from everything.
absl::Status CheckNear(absl::string_view what, absl::Span<const float> got,
                       absl::Span<const float> want);

// Runs `operation`, which adds work to the default stream of the device, `count` times, and waits
// for the device at the end only. Returns the mean time of one, in seconds.
// Errors: those of the operation and of the device.
absl::StatusOr<double> TimeOnDevice(Device& device, int count,
                                    absl::FunctionRef<absl::Status()> operation);

// Copies within a device: the floor of work that reads and writes as many bytes. Thread-compatible.
class CopyFloor {
 public:
  // For work that reads and writes `traffic_bytes` together.
  static absl::StatusOr<CopyFloor> Create(Device& device, size_t traffic_bytes);
  // Adds copies of half as many bytes, because a copy reads and writes each byte.
  absl::Status Add();

 private:
  CopyFloor(Device& device, size_t bytes) : device_(&device), bytes_(bytes) {}

  Device* device_;
  size_t bytes_;  // that are copied
  std::shared_ptr<Block> from_, to_;
};

}  // namespace psd::bench
