#pragma once

// Emulated devices with the kernels that GPUs have.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/device/emulated/emulated_device.h"

namespace psd::testing {

// Returns `count` devices, "emu:0", "emu:1" and so on, of `budget_bytes` each. `seed` decides in
// which order their work runs (core/device/emulated/stream_scheduler.h). All work is on their
// default streams.
//
// They have the kernels of core/device_kernels/emulated: all optimizers, dense and of rows, and the
// operators that are listed there.
std::vector<std::shared_ptr<EmulatedDevice>> NewTestDevices(int count, uint64_t seed,
                                                            size_t budget_bytes = size_t{16} << 20,
                                                            size_t pinned_bytes = size_t{16} << 20);

// Returns one such device.
std::shared_ptr<EmulatedDevice> NewTestDevice(uint64_t seed,
                                              size_t budget_bytes = size_t{16} << 20);

// Returns "emu:0" whose memory other workers and processes can open. All such devices are equal
// hardware (DeviceSharing::identity).
std::shared_ptr<EmulatedDevice> NewSharedTestDevice(uint64_t seed,
                                                    size_t budget_bytes = size_t{64} << 20);

}  // namespace psd::testing
