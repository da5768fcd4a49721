#pragma once

// Moves many tensors between ranks in few messages: small ones travel together. Internal to
// client/.

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/collectives/group.h"
#include "core/base/device.h"
#include "core/services/collectives/collective_call.h"
#include "core/tensor/tensor.h"

namespace psd {

using services::TensorForm;

// Tensors that travel in one message, one after the other, each from a multiple of 64 bytes on.
struct Parcel {
  std::vector<size_t> members;  // positions in the list of tensors, ascending
  size_t bytes = 0;             // of the message
  Device* device = nullptr;     // of all members on this rank; null for the host
};

// A tensor of at least this many bytes travels alone, without a copy. The others are copied
// together into messages of at most kMostParcelBytes.
inline constexpr size_t kLoneBytes = size_t{256} << 10;
inline constexpr size_t kMostParcelBytes = size_t{4} << 20;

// Decides which tensors travel together; those of different devices do not. `devices` has the
// device of each tensor on this rank, null for the host; if it is empty, all are on the host. The
// result depends on the forms, and on which tensors have the same device. So ranks that agree on
// these get equal members. Tensors without elements are in no parcel.
std::vector<Parcel> PlanParcels(const std::vector<TensorForm>& forms,
                                const std::vector<Device*>& devices = {});

// Returns one tensor for each form, to be set by Unpack. The tensors are undefined, except for
// those without elements, which no parcel brings. Errors: RESOURCE_EXHAUSTED; those of the devices.
absl::StatusOr<std::vector<Tensor>> WithoutElements(const std::vector<TensorForm>& forms,
                                                    const std::vector<Device*>& devices = {});

// Returns the message, which is on the parcel's device: the tensor itself if it is alone, otherwise
// bytes (u8). Requires: the members are on that device.
// Errors: RESOURCE_EXHAUSTED; those of the device.
absl::StatusOr<Tensor> Pack(const Parcel& parcel, const std::vector<Tensor>& tensors);
// Sets the members of `parcel` in `tensors`, which share the memory of the message, or of a copy of
// it on the parcel's device.
// Errors: INVALID_ARGUMENT naming both forms, for a message of another form than Pack makes;
// RESOURCE_EXHAUSTED; those of the device.
absl::Status Unpack(const Parcel& parcel, const std::vector<TensorForm>& forms,
                    const Tensor& message, std::vector<Tensor>& tensors);

std::vector<TensorForm> FormsOf(const std::vector<Tensor>& tensors);

// Tensors whose elements one rank has.
struct ParcelSource {
  int root = 0;
  std::vector<TensorForm> forms;  // of the tensors, the same on all ranks
  std::vector<Tensor> tensors;    // on the root; not used elsewhere
  // The device of each tensor on this rank, null for the host; empty if all are on the host.
  std::vector<Device*> devices = {};
};

// Returns the tensors of the root of each of `sources`, on this rank's devices. All ranks call it
// with the same roots, forms and options, and with devices that have the same tensors together.
// Each of its calls has the label of the options. Errors: those of Group::Broadcast,
// RESOURCE_EXHAUSTED, those of the devices. After an error the group has failed.
absl::StatusOr<std::vector<std::vector<Tensor>>> BroadcastParcels(
    Group& group, const std::vector<ParcelSource>& sources, const CollectiveOptions& options);

}  // namespace psd
