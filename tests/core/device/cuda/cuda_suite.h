#pragma once

// Tests of CUDA devices, which run on the fake of fake_cuda.h and on real GPUs.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/buffer.h"
#include "core/base/stream.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/cuda_stream.h"
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

// The functions below throw absl::BadStatusOrAccess if the device refuses something, so that a test
// on a GPU which was lost fails with its name, and the process goes on.

// The budget of test devices.
inline constexpr size_t kTestBudget = size_t{256} << 10;

inline std::shared_ptr<CudaDevice> OpenDevice(CudaDeviceOptions options = {}) {
  if (options.budget_bytes == 0) options.budget_bytes = kTestBudget;
  options.pinned_bytes = size_t{128} << 10;
  return CudaDevice::Open(options).value();
}

inline std::shared_ptr<Block> NewInts(Stream& stream, size_t count) {
  return stream.Allocate(count * sizeof(int)).value();
}

inline std::shared_ptr<Event> RecordOn(Stream& stream) {
  return stream.Record().value();
}

// Adds a copy of `value`, in each element, to the block. The result must live until it is done.
inline std::shared_ptr<Block> StartFilling(Stream& stream, const Block& block, int value) {
  auto pinned = stream.device().pinned_memory().Allocate(block.size()).value();
  auto* const ints = reinterpret_cast<int*>(pinned->data());
  std::fill(ints, ints + block.size() / sizeof(int), value);
  const absl::Status added = stream.CopyIn(block.data(), pinned->data(), block.size());
  EXPECT_TRUE(added.ok()) << added;
  return pinned;
}

// Adds a copy of the block to pinned memory, whose elements are 0 until it is done.
inline std::shared_ptr<Block> StartReading(Stream& stream, const Block& block) {
  auto pinned = stream.device().pinned_memory().Allocate(block.size()).value();
  std::fill(pinned->data(), pinned->data() + block.size(), std::byte{0});
  const absl::Status added = stream.CopyOut(pinned->data(), block.data(), block.size());
  EXPECT_TRUE(added.ok()) << added;
  return pinned;
}

// Adds a copy of a table with `value` in each element to the block.
inline absl::Status CopyTableTo(CudaStream& stream, const Block& block, int value) {
  return stream.AddWithTable(
      "CopyTable", block.size(),
      [&](void* table) {
        auto* const ints = static_cast<int*>(table);
        std::fill(ints, ints + block.size() / sizeof(int), value);
      },
      [&](const void* table, CUstream_st* handle) {
        return cudaMemcpyAsync(block.data(), table, block.size(), cudaMemcpyDefault, handle);
      });
}

inline std::vector<int> Ints(const Block& pinned) {
  const auto* const ints = reinterpret_cast<const int*>(pinned.data());
  return std::vector<int>(ints, ints + pinned.size() / sizeof(int));
}

}  // namespace psd::testing
