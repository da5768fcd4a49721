#pragma once

// Emulated devices with the kernels of a few operators and optimizers.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/device/emulated/emulated_device.h"

namespace psd::testing {

// Returns `count` devices, "emu:0", "emu:1" and so on, with 16 MiB each. `seed` decides in which
// order their work runs (core/device/emulated/stream_scheduler.h). All work is on their default
// streams.
//
// They have all dense optimizers, and the operators StridedCopy, Add, Mul, Neg, Relu, ReluGradient,
// Sum, GatherRows, ScatterRows, and "Cast" from f32 to f64. Operators take f32 only.
std::vector<std::shared_ptr<EmulatedDevice>> NewTestDevices(int count, uint64_t seed);

// Returns one such device.
std::shared_ptr<EmulatedDevice> NewTestDevice(uint64_t seed);

}  // namespace psd::testing
