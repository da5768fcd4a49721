#pragma once

// Kernels and helpers for the tests of the emulated device.

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/buffer.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device/emulated/visible_copy.h"
#include "gtest/gtest.h"

namespace psd::testing {

struct FillWith {
  void operator()(size_t i, const DeviceArray<float>& to, float value) const { to[i] = value; }
};
struct AddTo {
  void operator()(size_t i, const DeviceArray<float>& to,
                  const DeviceArray<const float>& more) const {
    to[i] += more[i];
  }
};

inline std::shared_ptr<EmulatedDevice> NewDevice(EmulatedDeviceOptions options = {}) {
  auto devices = EmulatedDevice::Create(1, options);
  EXPECT_TRUE(devices.ok()) << devices.status();
  return (*devices)[0];
}

inline std::shared_ptr<EmulatedDevice> DeviceWithSeed(uint64_t seed) {
  EmulatedDeviceOptions options;
  options.seed = seed;
  return NewDevice(options);
}

inline EmulatedStream& AddStreamTo(EmulatedDevice& device) {
  const auto stream = device.AddStream();
  EXPECT_TRUE(stream.ok()) << stream.status();
  return static_cast<EmulatedStream&>(**stream);
}

inline std::shared_ptr<Block> NewFloats(Stream& stream, size_t count) {
  auto block = stream.Allocate(count * sizeof(float));
  EXPECT_TRUE(block.ok()) << block.status();
  return *std::move(block);
}

inline absl::Status Fill(EmulatedStream& stream, const Block& block, float value) {
  const DeviceArray<float> array(block);
  return stream.Launch("Fill", array.size(), FillWith(), array, value);
}

inline std::shared_ptr<Event> RecordOn(Stream& stream) {
  auto event = stream.Record();
  EXPECT_TRUE(event.ok()) << event.status();
  return *std::move(event);
}

// Adds a copy of the block's elements to `stream`. Until it is done, the pinned memory has zeros.
inline std::shared_ptr<Block> StartReading(Stream& stream, const Block& block) {
  auto pinned = stream.device().pinned_memory().Allocate(block.size());
  EXPECT_TRUE(pinned.ok()) << pinned.status();
  emulated::VisibleFill((*pinned)->data(), std::byte{0}, block.size());
  const absl::Status added = stream.CopyOut((*pinned)->data(), block.data(), block.size());
  EXPECT_TRUE(added.ok()) << added;
  return *std::move(pinned);
}

inline std::vector<float> Floats(const Block& pinned) {
  std::vector<float> floats(pinned.size() / sizeof(float));
  emulated::VisibleCopy(reinterpret_cast<std::byte*>(floats.data()), pinned.data(),
                        floats.size() * sizeof(float));
  return floats;
}

// Waits for the work of `stream` and returns the elements of the block.
inline std::vector<float> Read(Stream& stream, const Block& block) {
  const std::shared_ptr<Block> pinned = StartReading(stream, block);
  const absl::Status read = RecordOn(stream)->Wait();
  EXPECT_TRUE(read.ok()) << read;
  return Floats(*pinned);
}

// The floats of `count` equal elements.
inline std::vector<float> Equal(size_t count, float value) {
  return std::vector<float>(count, value);
}

}  // namespace psd::testing
