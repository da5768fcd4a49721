#include "bench/gpu/on_device.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/tensor/copy_to.h"

namespace psd::bench {
namespace {

// The most bytes of one copy of a floor. It is larger than the caches of GPUs.
constexpr size_t kCopyBytes = size_t{256} << 20;

}  // namespace

bool IsEmulated(const Device& device) {
  return absl::StartsWith(device.name(), "emu:");
}

absl::StatusOr<Tensor> Pattern(Device* device, const Shape& shape, float scale) {
  PSD_ASSIGN_OR_RETURN(Tensor here, Tensor::Empty(shape, DType::kF32));
  auto* const elements = here.mutable_data<float>();
  const auto count = static_cast<size_t>(shape.NumElements());
  for (size_t i = 0; i < count; ++i) elements[i] = scale * PatternAt(i);
  return CopyTo(device, here);
}

absl::StatusOr<std::vector<float>> ReadFloats(const Tensor& tensor, size_t first, size_t count) {
  std::vector<float> floats(count);
  PSD_RETURN_IF_ERROR(CopyBytes(nullptr, reinterpret_cast<std::byte*>(floats.data()),
                                tensor.device(), tensor.address() + first * sizeof(float),
                                count * sizeof(float)));
  return floats;
}

absl::Status CheckNear(absl::string_view what, absl::Span<const float> got,
                       absl::Span<const float> want) {
  if (got.size() != want.size()) {
    return absl::InternalError(
        absl::StrCat(what, " has ", got.size(), " elements instead of ", want.size()));
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::abs(got[i] - want[i]) <= 1e-5f * std::max(1.0f, std::abs(want[i]))) continue;
    return absl::InternalError(
        absl::StrCat(what, " has ", got[i], " at ", i, " instead of ", want[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> TimeOnDevice(Device& device, int count,
                                    absl::FunctionRef<absl::Status()> operation) {
  PSD_RETURN_IF_ERROR(device.Synchronize());
  const Clock& clock = Clock::Steady();
  const absl::Time start = clock.Now();
  for (int i = 0; i < count; ++i) PSD_RETURN_IF_ERROR(operation());
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<Event> end, device.default_stream().Record());
  PSD_RETURN_IF_ERROR(end->Wait());
  return absl::ToDoubleSeconds(clock.Now() - start) / count;
}

absl::StatusOr<CopyFloor> CopyFloor::Create(Device& device, size_t traffic_bytes) {
  CopyFloor floor(device, traffic_bytes / 2);
  const size_t block = std::min(floor.bytes_, kCopyBytes);
  PSD_ASSIGN_OR_RETURN(floor.from_, device.memory().Allocate(block));
  PSD_ASSIGN_OR_RETURN(floor.to_, device.memory().Allocate(block));
  return floor;
}

absl::Status CopyFloor::Add() {
  for (size_t left = bytes_; left > 0;) {
    const size_t bytes = std::min(left, from_->size());
    PSD_RETURN_IF_ERROR(
        device_->default_stream().CopyFrom(to_->data(), *device_, from_->data(), bytes));
    left -= bytes;
  }
  return absl::OkStatus();
}

}  // namespace psd::bench
