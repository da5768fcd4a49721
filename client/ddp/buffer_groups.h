#pragma once

// Which gradients travel together when replicas average their gradients through buffers. Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace psd {

class Device;  // core/base/device.h

// A parameter that every replica has. Its gradients are averaged over the replicas.
struct ReplicatedParameter {
  Shape shape;
  DType dtype = DType::kF32;  // a floating dtype
  bool requires_grad = true;  // if false, it has no gradient and is left out
  // If true, each replica keeps its own gradient: the parameter belongs to an expert of a mixture,
  // and every rank has another expert.
  bool expert = false;
  std::string name = {};  // may be empty
  // The device of this replica's elements and gradients; null for the host. Other replicas may have
  // them elsewhere.
  Device* device = nullptr;
};

// Returns a text of everything that must be equal on all replicas: name, dtype, shape, and whether
// the parameter belongs to an expert.
std::string Description(const ReplicatedParameter& parameter);

// Numbers the devices of all parameters but experts in the order in which they appear, and returns
// the numbers of these parameters' devices. All replicas must have equal numbers, whatever their
// devices are. Experts may be anywhere.
std::vector<size_t> DeviceNumbers(absl::Span<const ReplicatedParameter> parameters);

// Parameters whose gradients are reduced at once.
struct BufferGroup {
  DType dtype = DType::kF32;
  std::vector<size_t> parameters;  // positions, in order
  int64_t elements = 0;            // of all of them
  Device* device = nullptr;        // of all of them on this replica; null for the host
};

// Returns the number of elements of the buffer for one dtype on one device: `buffer_elements`, but
// no more than all parameters of that dtype have together on that device. Frozen parameters and
// experts count.
int64_t BufferSize(absl::Span<const ReplicatedParameter> parameters, Device* device, DType dtype,
                   int64_t buffer_elements);

// Returns the groups in the order in which they are reduced. There is a buffer of BufferSize
// elements for each device and dtype, in the order in which these appear, those of experts left
// out. Its parameters that take part are gathered in order. If one does not fit behind those
// gathered, these are reduced first. A parameter that is larger than the buffer is reduced alone,
// before those gathered. Frozen parameters and experts take no part. Requires: buffer_elements > 0.
std::vector<BufferGroup> GroupForBuffers(absl::Span<const ReplicatedParameter> parameters,
                                         int64_t buffer_elements);

}  // namespace psd
