// Tests of memory that CUDA devices share, on the fake of fake_cuda.h. There a process can import
// its own memory.

#include <cuda_runtime_api.h>
#include <fcntl.h>

#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/device_sharing.h"
#include "core/base/unique_fd.h"
#include "gmock/gmock.h"
#include "tests/core/device/cuda/cuda_suite.h"
#include "tests/core/device/cuda/fake_cuda.h"

namespace psd::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kCount = 10;
constexpr size_t kBytes = kCount * sizeof(int);

class CudaSharingTest : public ::testing::Test {
 protected:
  void SetUp() override { ResetFakeCuda(); }
};

std::shared_ptr<CudaDevice> OpenExporter() {
  CudaDeviceOptions options;
  options.shareable = true;
  return OpenDevice(options);
}

// Two devices that stand for the GPU in two processes. The first one has a block of ones, and the
// second one has opened its memory.
struct TwoDevices {
  TwoDevices() {
    const auto source = StartFilling(exporter->default_stream(), *block, 1);
    EXPECT_TRUE(exporter->Synchronize().ok());
  }
  std::shared_ptr<Block> Import(std::function<void()> released = [] {}) const {
    return memory->Import(handle, kBytes, std::move(released)).value();
  }

  std::shared_ptr<CudaDevice> exporter = OpenExporter(), importer = OpenDevice();
  std::shared_ptr<Block> block = NewInts(exporter->default_stream(), kCount);
  std::shared_ptr<PeerDeviceMemory> memory =
      importer->sharing()->Open(exporter->sharing()->Descriptor().value()).value();
  const std::string handle = exporter->sharing()->Export(*block).value();
};

TEST_F(CudaSharingTest, AGpuHasTheSameIdentityInAllProcesses) {
  const TwoDevices on;
  CudaDeviceOptions options;
  options.index = 1;
  EXPECT_EQ(on.exporter->sharing()->identity(), on.importer->sharing()->identity());
  EXPECT_EQ(on.importer->sharing()->identity(), "cuda:10101010101010101010101010101010");
  EXPECT_EQ(OpenDevice(options)->sharing()->identity(), "cuda:11111111111111111111111111111111");
  EXPECT_TRUE(on.exporter->sharing()->exports());
  EXPECT_FALSE(on.importer->sharing()->exports());
}

TEST_F(CudaSharingTest, ADriverThatCannotShareOpensTheDeviceOnlyWithoutIt) {
  FakeMachine machine;
  machine.pool_handle_types = 0;
  ResetFakeCuda(machine);
  CudaDeviceOptions options;
  options.budget_bytes = kTestBudget;
  EXPECT_TRUE(OpenCudaDevice(options).ok());
  options.shareable = true;
  const absl::Status refused = OpenCudaDevice(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(),
              HasSubstr("cuda:0 cannot be opened: the driver cannot share memory of the GPU"));
}

TEST_F(CudaSharingTest, AnImporterReadsTheMemoryOfItsExporter) {
  const TwoDevices on;
  const auto imported = on.Import();
  EXPECT_EQ(imported->place().device(), on.importer.get());
  EXPECT_EQ(on.importer->used_bytes(), 0u);
  for (const int value : {2, 3}) {
    const auto source = StartFilling(on.exporter->default_stream(), *on.block, value);
    ASSERT_TRUE(on.exporter->Synchronize().ok());
    const auto read = StartReading(on.importer->default_stream(), *imported);
    ASSERT_TRUE(on.importer->Synchronize().ok());
    EXPECT_EQ(Ints(*read), std::vector<int>(kCount, value));
  }
}

// CUDA may refuse to make the memory one for reading only.
TEST_F(CudaSharingTest, TheMemoryIsReadAlsoIfItCannotBeProtected) {
  const auto exporter = OpenExporter(), importer = OpenDevice();
  UniqueFd descriptor = exporter->sharing()->Descriptor().value();
  FailNextCall("cudaMemPoolSetAccess", cudaErrorInvalidValue);
  EXPECT_TRUE(importer->sharing()->Open(std::move(descriptor)).ok());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// ---- release

// Both streams read late. When the block is released, they have read, and it has been freed.
TEST_F(CudaSharingTest, ABlockIsFreedAndReleasedBehindTheWorkOfAllItsUsers) {
  for (const bool has_events : {true, false}) {
    ResetFakeCuda();
    const TwoDevices on;
    Stream& other = **on.importer->AddStream();
    std::shared_ptr<Block> read, read_elsewhere;
    std::promise<int> released;
    auto imported = on.Import([&] {
      EXPECT_EQ(Ints(*read), std::vector<int>(kCount, 1));
      EXPECT_EQ(Ints(*read_elsewhere), std::vector<int>(kCount, 1));
      released.set_value(LivingFakeImports());
    });
    EXPECT_EQ(LivingFakeImports(), 1);
    ASSERT_TRUE(other.AlsoUses(*imported).ok());
    read = StartReading(on.importer->default_stream(), *imported);
    read_elsewhere = StartReading(other, *imported);
    if (!has_events) FailNextCall("cudaEventRecord", cudaErrorMemoryAllocation);
    imported.reset();
    EXPECT_EQ(released.get_future().get(), 0);
  }
}

TEST_F(CudaSharingTest, TheStreamOfTheScopeUsesWhatIsImported) {
  const TwoDevices on;
  Stream& other = **on.importer->AddStream();
  std::shared_ptr<Block> read;
  std::promise<std::vector<int>> released;
  {
    const StreamScope scope(other);
    const auto imported = on.Import([&] { released.set_value(Ints(*read)); });
    read = StartReading(other, *imported);
  }
  EXPECT_EQ(released.get_future().get(), std::vector<int>(kCount, 1));
}

TEST_F(CudaSharingTest, ABlockIsImportedOnceAndEachImportIsReleased) {
  const TwoDevices on;
  std::promise<int> first_released, second_released;
  auto first = on.Import([&] { first_released.set_value(LivingFakeImports()); });
  auto second = on.Import([&] { second_released.set_value(LivingFakeImports()); });
  EXPECT_EQ(first->data(), second->data());
  first.reset();
  EXPECT_EQ(first_released.get_future().get(), 1);
  EXPECT_TRUE(on.importer->default_stream().WaitForUsers(*second).ok());
  const auto read = StartReading(on.importer->default_stream(), *second);
  second.reset();
  EXPECT_EQ(second_released.get_future().get(), 0);
  EXPECT_EQ(Ints(*read), std::vector<int>(kCount, 1));
  EXPECT_NE(on.Import(), nullptr);
}

TEST_F(CudaSharingTest, AFreeThatIsRefusedStillReleases) {
  const TwoDevices on;
  std::promise<void> released;
  auto imported = on.Import([&] { released.set_value(); });
  FailNextCall("cudaFreeAsync", cudaErrorInvalidValue);
  imported.reset();
  released.get_future().wait();
  EXPECT_TRUE(on.importer->health().ok());
}

TEST_F(CudaSharingTest, ALostDeviceReleasesAndImportsNothingMore) {
  const TwoDevices on;
  std::promise<void> released;
  auto imported = on.Import([&] { released.set_value(); });
  on.importer->Lose("it fell off the bus");
  EXPECT_EQ(on.memory->Import(on.handle, kBytes, [] {}).status(), on.importer->health());
  EXPECT_EQ(on.importer->sharing()->Open(on.exporter->sharing()->Descriptor().value()).status(),
            on.importer->health());
  imported.reset();
  released.get_future().wait();
  on.exporter->Lose("so did this one");
  EXPECT_EQ(on.exporter->sharing()->Descriptor().status(), on.exporter->health());
  EXPECT_EQ(on.exporter->sharing()->Export(*on.block).status(), on.exporter->health());
}

// All of it was added before the work that loses the device.
TEST_F(CudaSharingTest, WorkThatLosesTheDeviceReleasesItsBlocks) {
  const TwoDevices on;
  std::promise<void> released;
  auto imported = on.Import([&] { released.set_value(); });
  FailNextOperation(0, cudaErrorIllegalAddress);
  const auto read = StartReading(on.importer->default_stream(), *imported);
  imported.reset();
  released.get_future().wait();
  EXPECT_FALSE(on.importer->health().ok());
}

TEST_F(CudaSharingTest, ADeviceEndsBehindTheReleaseOfItsImports) {
  {
    TwoDevices on;
    bool released = false;
    auto imported = on.Import([&] { released = true; });
    on.importer.reset();  // its block keeps it alive
    EXPECT_FALSE(released);
    imported.reset();
    EXPECT_TRUE(released);
    const absl::Status refused = on.memory->Import(on.handle, kBytes, [] {}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(refused.message(), HasSubstr("cuda:0 allocates nothing more"));
  }
  EXPECT_EQ(LivingFakeObjects(), 0);
}

TEST_F(CudaSharingTest, AnImportOutlivesTheOpenMemory) {
  TwoDevices on;
  const auto imported = on.Import();
  on.memory.reset();
  const auto read = StartReading(on.importer->default_stream(), *imported);
  ASSERT_TRUE(on.importer->Synchronize().ok());
  EXPECT_EQ(Ints(*read), std::vector<int>(kCount, 1));
}

// ---- what CUDA refuses

TEST_F(CudaSharingTest, MemoryThatCannotBeOpenedLeavesNothingBehind) {
  for (const char* function : {"cudaStreamCreateWithFlags", "cudaMemPoolImportFromShareableHandle",
                               "cudaMemPoolSetAccess"}) {
    ResetFakeCuda();
    {
      const auto exporter = OpenExporter(), importer = OpenDevice();
      UniqueFd descriptor = exporter->sharing()->Descriptor().value();
      FailNextCall(function, cudaErrorMemoryAllocation);
      EXPECT_EQ(importer->sharing()->Open(std::move(descriptor)).status().code(),
                absl::StatusCode::kResourceExhausted)
          << function;
    }
    EXPECT_EQ(LivingFakeObjects(), 0) << function;
  }
}

TEST_F(CudaSharingTest, AnExportThatCudaRefusesIsAnErrorAndTheNextOneIsNot) {
  const TwoDevices on;
  const auto exporter = OpenExporter();
  FailNextCall("cudaMemPoolExportToShareableHandle", cudaErrorMemoryAllocation);
  EXPECT_EQ(exporter->sharing()->Descriptor().status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(exporter->sharing()->Descriptor().ok());
  FailNextCall("cudaMemPoolExportPointer", cudaErrorMemoryAllocation);
  EXPECT_EQ(on.exporter->sharing()->Export(*on.block).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(on.exporter->sharing()->Export(*on.block).value(), on.handle);
}

TEST_F(CudaSharingTest, DescriptorsOfOtherFilesAreRefused) {
  const auto device = OpenDevice();
  for (int i = 0; i < 2; ++i) {
    UniqueFd other = i == 0 ? UniqueFd() : UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC));
    const absl::Status refused = device->sharing()->Open(std::move(other)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("cuda:0 cannot map memory of another process: "));
  }
  EXPECT_TRUE(device->health().ok());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaSharingTest, HandlesThatNameNoBlockAreRefused) {
  TwoDevices on;
  const auto expect_refused = [&](const std::string& handle, size_t bytes, const std::string& why) {
    const absl::Status refused =
        on.memory->Import(handle, bytes, [] { ADD_FAILURE() << "released"; }).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(refused.message(), HasSubstr("cuda:0 cannot map a block of another process: "));
    EXPECT_THAT(refused.message(), HasSubstr(why));
  };
  ASSERT_EQ(on.handle.size(), 72u);
  expect_refused("", kBytes, "the handle has 0 bytes, not 72");
  expect_refused(on.handle.substr(1), kBytes, "the handle has 71 bytes");
  expect_refused(on.handle + "0", kBytes, "the handle has 73 bytes");
  expect_refused(on.handle, kBytes + 1, "names a block of 40 bytes, and one of 41 is asked for");
  expect_refused(std::string(64, 'x') + on.handle.substr(64), kBytes, "cudaMemPoolImportPointer");
  std::promise<void> released;
  {
    const auto mapped = on.memory->Import(on.handle, kBytes, [&] { released.set_value(); });
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    std::string larger = on.handle;
    ++larger[64];
    expect_refused(larger, kBytes + 1, "names a block that is mapped with 40 bytes, not 41");
  }
  released.get_future().wait();
  on.block.reset();
  ASSERT_TRUE(on.exporter->Synchronize().ok());
  expect_refused(on.handle, kBytes, "pass the handle of a block that is not freed");
}

TEST_F(CudaSharingTest, OnlyOwnBlocksAreExported) {
  const TwoDevices on;
  const auto both = OpenExporter();
  const auto memory = both->sharing()->Open(on.exporter->sharing()->Descriptor().value()).value();
  const auto imported = memory->Import(on.handle, kBytes, [] {}).value();
  const absl::Status passed_on = both->sharing()->Export(*imported).status();
  EXPECT_EQ(passed_on.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(passed_on.message(), HasSubstr("cuda:0 does not pass on a block"));
  const auto foreign = NewInts(on.importer->default_stream(), kCount);
  EXPECT_EQ(both->sharing()->Export(*foreign).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd::testing
