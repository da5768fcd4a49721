#include "core/base/device.h"

#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/base/stream.h"

namespace psd {

absl::string_view DeviceName(const Device* device) {
  return device == nullptr ? absl::string_view(kCpuName) : device->name();
}

namespace {

absl::Status CopyBetween(Device& to_device, std::byte* to, Device& from_device,
                         const std::byte* from, size_t bytes) {
  PSD_RETURN_IF_ERROR(AwaitCurrentWork(&from_device));
  const absl::Status added = CurrentStream(&to_device)->CopyFrom(to, from_device, from, bytes);
  if (added.ok()) return AwaitCurrentWork(&to_device);
  if (!absl::IsUnimplemented(added)) return added;
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<Block> staging, NewHeapAllocator()->Allocate(bytes));
  PSD_RETURN_IF_ERROR(from_device.CopyOut(staging->data(), from, bytes));
  return to_device.CopyIn(to, staging->data(), bytes);
}

}  // namespace

absl::Status CopyBytes(Device* to_device, std::byte* to, Device* from_device, const std::byte* from,
                       size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (to_device == from_device) {
    if (to_device != nullptr) return to_device->CopyWithin(to, from, bytes);
    std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  if (from_device == nullptr) return to_device->CopyIn(to, from, bytes);
  if (to_device == nullptr) return from_device->CopyOut(to, from, bytes);
  return CopyBetween(*to_device, to, *from_device, from, bytes);
}

absl::Status NotOnDevice(absl::string_view operation, const Device* device) {
  return WithRemedy(
      absl::UnimplementedError(absl::StrCat(operation, " does not work on ", DeviceName(device),
                                            ": that device has no such kernel")),
      "copy its operands to another device first");
}

absl::Status MixedDevices(absl::string_view operation, const Device* a, const Device* b) {
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat(operation, " was given values on ", DeviceName(a),
                                              " and on ", DeviceName(b))),
      "copy one of them to the other's device first");
}

}  // namespace psd
