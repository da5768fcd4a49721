#pragma once

// Emulated devices that share memory, for tests.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/base/buffer.h"
#include "core/base/device_sharing.h"
#include "core/base/unique_fd.h"
#include "core/device/emulated/emulated_device.h"
#include "gtest/gtest.h"
#include "tests/core/device/emulated_kernels.h"

namespace psd::testing {

inline std::shared_ptr<EmulatedDevice> NewExporter(uint64_t seed = 0) {
  EmulatedDeviceOptions options;
  options.seed = seed;
  options.shareable = true;
  return NewDevice(options);
}

inline std::shared_ptr<PeerDeviceMemory> Open(EmulatedDevice& importer, UniqueFd descriptor) {
  auto memory = importer.sharing()->Open(std::move(descriptor));
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}
inline std::shared_ptr<PeerDeviceMemory> Open(EmulatedDevice& importer, EmulatedDevice& exporter) {
  auto descriptor = exporter.sharing()->Descriptor();
  EXPECT_TRUE(descriptor.ok()) << descriptor.status();
  return Open(importer, *std::move(descriptor));
}

inline std::string Export(EmulatedDevice& exporter, const Block& block) {
  auto handle = exporter.sharing()->Export(block);
  EXPECT_TRUE(handle.ok()) << handle.status();
  return *std::move(handle);
}

inline std::shared_ptr<Block> Import(
    PeerDeviceMemory& memory, const std::string& handle, size_t bytes,
    std::function<void()> released = [] {}) {
  auto block = memory.Import(handle, bytes, std::move(released));
  EXPECT_TRUE(block.ok()) << block.status();
  return *std::move(block);
}

// A block of one device, whose elements are 1, and another device that has opened the memory.
struct TwoDevices {
  static constexpr size_t kCount = 100;
  static constexpr size_t kBytes = kCount * sizeof(float);

  explicit TwoDevices(uint64_t seed = 0)
      : exporter(NewExporter(seed)), importer(DeviceWithSeed(seed)) {
    EXPECT_TRUE(Fill(exporter->default_stream(), *block, 1).ok());
    EXPECT_TRUE(exporter->Synchronize().ok());
  }
  std::shared_ptr<Block> Import(std::function<void()> released = [] {}) const {
    return testing::Import(*memory, handle, kBytes, std::move(released));
  }

  std::shared_ptr<EmulatedDevice> exporter, importer;
  std::shared_ptr<Block> block = NewFloats(exporter->default_stream(), kCount);
  std::shared_ptr<PeerDeviceMemory> memory = Open(*importer, *exporter);
  const std::string handle = Export(*exporter, *block);
};

}  // namespace psd::testing
