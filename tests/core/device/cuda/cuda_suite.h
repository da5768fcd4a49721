#pragma once

// Tests of CUDA devices, which run on the fake of fake_cuda.h and on real GPUs.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/stream.h"
#include "core/device/cuda/cuda_device.h"
#include "gtest/gtest.h"

namespace psd::testing {

// Makes ready for a test, and returns "" or why there is no GPU. fake_machine.cc and
// real_machine.cc have one definition each.
std::string PrepareMachine();

class CudaSuite : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = PrepareMachine(); !why.empty()) GTEST_SKIP() << why;
  }
};

// The budget of test devices.
inline constexpr size_t kTestBudget = size_t{256} << 10;

inline std::shared_ptr<CudaDevice> OpenDevice(CudaDeviceOptions options = {}) {
  if (options.budget_bytes == 0) options.budget_bytes = kTestBudget;
  options.pinned_bytes = size_t{128} << 10;
  auto device = CudaDevice::Open(options);
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

inline std::shared_ptr<Block> NewInts(Stream& stream, size_t count) {
  auto block = stream.Allocate(count * sizeof(int));
  EXPECT_TRUE(block.ok()) << block.status();
  return *std::move(block);
}

inline std::shared_ptr<Event> RecordOn(Stream& stream) {
  auto event = stream.Record();
  EXPECT_TRUE(event.ok()) << event.status();
  return *std::move(event);
}

// Adds a copy of `value`, in each element, to the block. The result must live until it is done.
inline std::shared_ptr<Block> StartFilling(Stream& stream, const Block& block, int value) {
  auto pinned = stream.device().pinned_memory().Allocate(block.size());
  EXPECT_TRUE(pinned.ok()) << pinned.status();
  auto* const ints = reinterpret_cast<int*>((*pinned)->data());
  std::fill(ints, ints + block.size() / sizeof(int), value);
  const absl::Status added = stream.CopyIn(block.data(), (*pinned)->data(), block.size());
  EXPECT_TRUE(added.ok()) << added;
  return *std::move(pinned);
}

// Adds a copy of the block to pinned memory, whose elements are 0 until it is done.
inline std::shared_ptr<Block> StartReading(Stream& stream, const Block& block) {
  auto pinned = stream.device().pinned_memory().Allocate(block.size());
  EXPECT_TRUE(pinned.ok()) << pinned.status();
  std::fill((*pinned)->data(), (*pinned)->data() + block.size(), std::byte{0});
  const absl::Status added = stream.CopyOut((*pinned)->data(), block.data(), block.size());
  EXPECT_TRUE(added.ok()) << added;
  return *std::move(pinned);
}

inline std::vector<int> Ints(const Block& pinned) {
  const auto* const ints = reinterpret_cast<const int*>(pinned.data());
  return std::vector<int>(ints, ints + pinned.size() / sizeof(int));
}

}  // namespace psd::testing
