// CUDA devices that fail, and missing waits, on the fake of fake_cuda.h.

#include <cuda_runtime_api.h>

#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "tests/core/device/cuda/cuda_suite.h"
#include "tests/core/device/cuda/fake_cuda.h"

namespace psd::testing {
namespace {

using ::testing::HasSubstr;

class CudaFaultsTest : public ::testing::Test {
 protected:
  void SetUp() override { ResetFakeCuda(); }
};

std::shared_ptr<CudaDevice> SecondDevice() {
  CudaDeviceOptions options;
  options.index = 1;
  return OpenDevice(options);
}

void ExpectLost(const absl::Status& status, const std::string& device) {
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(status.message(), HasSubstr(device + " is lost: "));
}

// A block of one stream, which is being filled, and another stream.
struct TwoStreams {
  // Frees the block, and has its memory used again: for an allocation that finds no memory, the
  // fake frees first, and then does all other work.
  void FreeAndUseAgain() {
    block.reset();
    FailNextCall("cudaMallocFromPoolAsync", cudaErrorMemoryAllocation);
    NewInts(one, 10);
  }

  const std::shared_ptr<CudaDevice> device = OpenDevice();
  Stream& one = device->default_stream();
  Stream& two = **device->AddStream();
  std::shared_ptr<Block> block = NewInts(one, 10);
  const std::shared_ptr<Block> source = StartFilling(one, *block, 5);
};

TEST_F(CudaFaultsTest, TheFakeShowsAMissingWait) {
  TwoStreams on;
  const auto read = StartReading(on.two, *on.block);
  ASSERT_TRUE(RecordOn(on.two)->Wait().ok());
  EXPECT_NE(Ints(*read), std::vector<int>(10, 5));
}

TEST_F(CudaFaultsTest, TheFakeShowsAUseThatWasNotDeclared) {
  TwoStreams on;
  ASSERT_TRUE(on.two.WaitFor(RecordOn(on.one)).ok());
  const auto read = StartReading(on.two, *on.block);
  on.block.reset();
  ASSERT_TRUE(RecordOn(on.one)->Wait().ok());
  ASSERT_TRUE(RecordOn(on.two)->Wait().ok());
  EXPECT_NE(Ints(*read), std::vector<int>(10, 5));
}

TEST_F(CudaFaultsTest, MemoryIsFreedBehindTheWorkOfAllStreamsThatUseIt) {
  TwoStreams on;
  ASSERT_TRUE(on.two.WaitFor(RecordOn(on.one)).ok());
  ASSERT_TRUE(on.two.AlsoUses(*on.block).ok());
  const auto read = StartReading(on.two, *on.block);
  ASSERT_TRUE(RecordOn(on.one)->Wait().ok());
  on.FreeAndUseAgain();
  EXPECT_EQ(Ints(*read), std::vector<int>(10, 5));
}

TEST_F(CudaFaultsTest, ADeviceLeavesNothingBehind) {
  std::shared_ptr<Event> event;
  {
    const auto device = OpenDevice();
    Stream& two = **device->AddStream();
    const auto block = NewInts(two, 10);
    ASSERT_TRUE(device->default_stream().AlsoUses(*block).ok());
    ASSERT_TRUE(device->default_stream()
                    .CopyFrom(block->data(), *device, block->data() + 20, 20)
                    .ok());  // nobody waits for it
    event = RecordOn(two);
    EXPECT_GT(LivingFakeObjects(), 0);
  }
  event.reset();
  EXPECT_EQ(LivingFakeObjects(), 0);
}

TEST_F(CudaFaultsTest, ADeviceThatCannotBeOpenedLeavesNothingBehind) {
  for (const char* function : {"cudaSetDevice", "cudaStreamCreateWithFlags", "cudaMemPoolCreate",
                               "cudaMemPoolSetAttribute", "cudaMallocFromPoolAsync",
                               "cudaFreeAsync", "cudaGetDeviceProperties", "cudaHostAlloc"}) {
    ResetFakeCuda();
    FailNextCall(function, cudaErrorMemoryAllocation);
    CudaDeviceOptions options;
    options.budget_bytes = kTestBudget;
    const auto refused = OpenCudaDevice(options);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << function;
    EXPECT_EQ(LivingFakeObjects(), 0) << function;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << function;
  }
}

TEST_F(CudaFaultsTest, ABudgetBeyondTheFreeMemoryIsRefused) {
  CudaDeviceOptions options;
  options.budget_bytes = size_t{1} << 21;
  const auto refused = OpenCudaDevice(options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("cuda:0 cannot reserve its budget of 2097152 bytes: 1048576 bytes are free "
                        "on the GPU; lower the budget"));
}

TEST_F(CudaFaultsTest, WithoutABudgetItIsNineTenthsOfWhatIsFree) {
  const auto device = OpenCudaDevice({});
  ASSERT_TRUE(device.ok()) << device.status();
  constexpr size_t kFree = size_t{1} << 20;
  EXPECT_EQ((*device)->budget_bytes(), kFree / 10 * 9 / kFakePoolUnit * kFakePoolUnit);
}

// It must not be rounded up to 0 bytes, of which the GPU has enough.
TEST_F(CudaFaultsTest, TheLargestBudgetIsRefused) {
  CudaDeviceOptions options;
  options.budget_bytes = std::numeric_limits<size_t>::max();
  EXPECT_EQ(OpenCudaDevice(options).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(LivingFakeObjects(), 0);
}

// The GPU has exactly the budget's bytes, and the pool takes whole units.
TEST_F(CudaFaultsTest, ABudgetIsRoundedDownToWhatThePoolTakes) {
  FakeMachine machine;
  machine.memory_bytes = 8 * kFakePoolUnit - 1;
  ResetFakeCuda(machine);
  CudaDeviceOptions options;
  options.budget_bytes = machine.memory_bytes;
  const auto device = OpenDevice(options);
  EXPECT_EQ(device->budget_bytes(), 7 * kFakePoolUnit);
  options.index = 1;
  options.budget_bytes = kFakePoolUnit - 1;
  EXPECT_EQ(OpenDevice(options)->memory().Allocate(1).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(CudaFaultsTest, PinnedMemoryFollowsTheBudgetUnlessItsSizeIsGiven) {
  CudaDeviceOptions options;
  options.budget_bytes = kTestBudget;
  const auto device = *OpenCudaDevice(options);
  EXPECT_TRUE(device->pinned_memory().Allocate(kTestBudget / 16).ok());
  EXPECT_EQ(device->pinned_memory().Allocate(kTestBudget / 16 + 1).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// UNAVAILABLE would mean to the daemon that it cannot listen.
TEST_F(CudaFaultsTest, AGpuThatAnotherProcessHoldsIsNamedWithWhatToLookAt) {
  for (const char* function : {"cudaSetDevice", "cudaMemGetInfo", "cudaHostAlloc"}) {
    ResetFakeCuda();
    FailNextCall(function, cudaErrorDevicesUnavailable);
    const auto refused = OpenCudaDevice({});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << function;
    EXPECT_THAT(refused.status().message(), HasSubstr("cuda:0 cannot be opened: "));
    EXPECT_THAT(refused.status().message(), HasSubstr(" failed: cudaErrorOfTheFake (46), "));
    EXPECT_THAT(refused.status().message(), HasSubstr("another process may hold the GPU"));
  }
}

TEST_F(CudaFaultsTest, AnAllocationWaitsForMemoryThatIsStillInUse) {
  FakeMachine machine;
  machine.memory_bytes = 3000;
  ResetFakeCuda(machine);
  CudaDeviceOptions options;
  options.budget_bytes = 2048;
  const auto device = OpenDevice(options);
  Stream& stream = device->default_stream();
  auto block = NewInts(stream, 500);
  const auto source = StartFilling(stream, *block, 1);
  const auto read = StartReading(stream, *block);
  block.reset();
  EXPECT_EQ(NewInts(stream, 500)->size(), 2000u);
  EXPECT_EQ(Ints(*read), std::vector<int>(500, 1));
}

// The pool takes 512 bytes for each of these blocks, and the GPU has no more than the budget.
TEST_F(CudaFaultsTest, TheBudgetCountsWhatThePoolTakes) {
  FakeMachine machine;
  machine.memory_bytes = 8192;
  ResetFakeCuda(machine);
  CudaDeviceOptions options;
  options.budget_bytes = 8192;
  const auto device = OpenDevice(options);
  std::vector<std::shared_ptr<Block>> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(device->memory().Allocate(100).value());
  EXPECT_THAT(device->memory().Allocate(100).status().message(),
              HasSubstr("the budget is 8192 bytes, of which 8192 are in use"));
  blocks.clear();
  EXPECT_EQ(device->used_bytes(), 0u);
}

// The next attempt to take memory from the GPU, and the one after it has been emptied, finds none.
void FillGpu() {
  FailNextCall("cudaMallocFromPoolAsync", cudaErrorMemoryAllocation);
  FailNextCall("cudaDeviceSynchronize", cudaErrorMemoryAllocation);
}

TEST_F(CudaFaultsTest, AFullGpuRefusesAnAllocationAndGoesOn) {
  const auto device = OpenDevice();
  FailNextCall("cudaMallocFromPoolAsync", cudaErrorMemoryAllocation);
  EXPECT_TRUE(device->memory().Allocate(100).ok());  // the second attempt
  FillGpu();
  const auto refused = device->memory().Allocate(100);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(device->used_bytes(), 0u);
  EXPECT_TRUE(device->health().ok());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaFaultsTest, AnAllocationOnAFullGpuNamesNeedBudgetAndUse) {
  CudaDeviceOptions options;
  options.budget_bytes = 5000;
  const auto device = OpenDevice(options);
  ShrinkFakeMachine(3000);  // another program took the rest
  const auto refused = device->memory().Allocate(4000);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("cuda:0 has no room for 4000 bytes more: 0 bytes of its budget of 4608 are "
                        "in use, but the GPU is full"));
  EXPECT_EQ(device->used_bytes(), 0u);
}

TEST_F(CudaFaultsTest, AFullGpuMakesWorkReadItsTableInPinnedMemory) {
  const auto device = OpenDevice();
  CudaStream& stream = device->default_stream();
  const auto first = NewInts(stream, 10), second = NewInts(stream, 10);
  FillGpu();
  ASSERT_TRUE(CopyTableTo(stream, *first, 7).ok());
  FillGpu();
  ASSERT_TRUE(CopyTableTo(stream, *second, 8).ok());  // it does not use the first one's memory
  const auto read = StartReading(stream, *first);
  ASSERT_TRUE(device->Synchronize().ok());
  EXPECT_EQ(Ints(*read), std::vector<int>(10, 7));
}

TEST_F(CudaFaultsTest, WorkWithoutRoomForItsTableAnywhereIsRefused) {
  const auto device = OpenDevice();
  CudaStream& stream = device->default_stream();
  const auto block = NewInts(stream, 10);
  const auto all = device->pinned_memory().Allocate(size_t{128} << 10).value();
  FillGpu();
  EXPECT_EQ(CopyTableTo(stream, *block, 7).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(CopyTableTo(stream, *block, 7).ok());
}

TEST_F(CudaFaultsTest, AWaitForUsersThatFailsDropsNone) {
  TwoStreams on;
  ASSERT_TRUE(on.two.WaitFor(RecordOn(on.one)).ok());
  ASSERT_TRUE(on.two.AlsoUses(*on.block).ok());
  const auto read = StartReading(on.two, *on.block);
  ASSERT_TRUE(RecordOn(on.one)->Wait().ok());
  FailNextCall("cudaStreamWaitEvent", cudaErrorMemoryAllocation);
  EXPECT_EQ(on.one.WaitForUsers(*on.block).code(), absl::StatusCode::kResourceExhausted);
  on.FreeAndUseAgain();
  EXPECT_EQ(Ints(*read), std::vector<int>(10, 5));
}

TEST_F(CudaFaultsTest, AUseThatIsDeclaredDuringAWaitForUsersIsKept) {
  TwoStreams on;
  ASSERT_TRUE(on.two.WaitFor(RecordOn(on.one)).ok());
  ASSERT_TRUE(on.two.AlsoUses(*on.block).ok());
  DuringNextCall("cudaStreamWaitEvent", [&] { EXPECT_TRUE(on.two.AlsoUses(*on.block).ok()); });
  ASSERT_TRUE(on.one.WaitForUsers(*on.block).ok());
  const auto read = StartReading(on.two, *on.block);
  ASSERT_TRUE(RecordOn(on.one)->Wait().ok());
  on.FreeAndUseAgain();
  EXPECT_EQ(Ints(*read), std::vector<int>(10, 5));
}

TEST_F(CudaFaultsTest, ACompletionAtTheEndOfItsDeviceIsRefusedMemory) {
  auto device = OpenDevice();
  Stream& stream = device->default_stream();
  const std::weak_ptr<CudaDevice> dropped = device;
  absl::Status refused;
  RecordOn(stream)->OnPassed([&](const absl::Status& /*result*/) {
    while (!dropped.expired()) std::this_thread::yield();
    refused = stream.Allocate(4).status();
  });
  device.reset();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("cuda:0 allocates nothing more"));
}

// No code of psd does that (Event::OnPassed), but a mistake must not end the process.
TEST_F(CudaFaultsTest, ACompletionThatDropsTheLastReferenceEndsItsDevice) {
  auto device = OpenDevice();
  Stream& stream = device->default_stream();
  auto block = NewInts(stream, 10);
  std::promise<void> dropped;
  RecordOn(stream)->OnPassed([last = std::move(block), released = dropped.get_future().share()](
                                 const absl::Status& /*result*/) { released.wait(); });
  device.reset();
  dropped.set_value();
  while (LivingFakeObjects() > 0) std::this_thread::yield();
}

TEST_F(CudaFaultsTest, TheSuiteSaysWhatALostDeviceRefused) {
  const auto device = OpenDevice();
  static_cast<void>(device->context().Lose("an illegal access"));
  EXPECT_THROW(NewInts(device->default_stream(), 1), absl::BadStatusOrAccess);
  EXPECT_THROW(RecordOn(device->default_stream()), absl::BadStatusOrAccess);
}

TEST_F(CudaFaultsTest, AnOperationThatIsRefusedChangesNothing) {
  const auto device = OpenDevice();
  const auto block = NewInts(device->default_stream(), 1);
  FailNextCall("cudaMemcpyAsync", cudaErrorInvalidValue);
  const int one = 1;
  const absl::Status refused =
      device->CopyIn(block->data(), reinterpret_cast<const std::byte*>(&one), sizeof(int));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(refused.message(), HasSubstr("cuda:0 refused CopyIn on stream 0 of cuda:0: "));
  EXPECT_TRUE(device->health().ok());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaFaultsTest, WorkThatFailsLosesTheDevice) {
  const auto device = OpenDevice();
  Stream& stream = device->default_stream();
  auto block = NewInts(stream, 10);
  FailNextOperation(0, cudaErrorIllegalAddress);
  const auto source = StartFilling(stream, *block, 5);
  const auto event = RecordOn(stream);
  std::promise<absl::Status> called;
  event->OnPassed([&](absl::Status result) { called.set_value(std::move(result)); });
  ExpectLost(called.get_future().get(), "cuda:0");
  EXPECT_TRUE(event->passed());
  ExpectLost(event->Wait(), "cuda:0");
  ExpectLost(device->health(), "cuda:0");
  ExpectLost(device->Synchronize(), "cuda:0");
  ExpectLost(stream.Record().status(), "cuda:0");
  ExpectLost(stream.Allocate(1).status(), "cuda:0");
  ExpectLost(stream.CopyIn(block->data(), source->data(), 4), "cuda:0");
  ExpectLost(device->AddStream().status(), "cuda:0");
  block.reset();
  EXPECT_EQ(device->used_bytes(), 0u);
}

TEST_F(CudaFaultsTest, AnEventThatHasPassedStaysPassedWhenTheDeviceIsLost) {
  const auto device = OpenDevice();
  const auto event = RecordOn(device->default_stream());
  ASSERT_TRUE(event->Wait().ok());
  const auto block = NewInts(device->default_stream(), 10);
  FailNextOperation(0, cudaErrorLaunchFailure);
  const auto source = StartFilling(device->default_stream(), *block, 5);
  ExpectLost(device->Synchronize(), "cuda:0");
  EXPECT_TRUE(event->Wait().ok());
}

// ---- several devices

TEST_F(CudaFaultsTest, DevicesWaitForEachOtherAndCopyDirectly) {
  const auto one = OpenDevice(), two = SecondDevice();
  Stream& from = one->default_stream();
  Stream& to = two->default_stream();
  const auto source = NewInts(from, 10), target = NewInts(to, 10);
  const auto filling = StartFilling(from, *source, 4);
  ASSERT_TRUE(to.WaitFor(RecordOn(from)).ok());
  ASSERT_TRUE(to.CopyFrom(target->data(), *one, source->data(), source->size()).ok());
  const auto read = StartReading(to, *target);
  ASSERT_TRUE(RecordOn(to)->Wait().ok());
  EXPECT_EQ(Ints(*read), std::vector<int>(10, 4));
  EXPECT_EQ(to.AlsoUses(*source).code(), absl::StatusCode::kInvalidArgument);
}

// Lets the device do its work. What fails there has been seen by CUDA then, but not by psd.
void RunUnseen(CudaDevice& device) {
  cudaSetDevice(device.context().index());
  cudaStreamSynchronize(device.default_stream().handle());
  cudaGetLastError();
}

TEST_F(CudaFaultsTest, ACopyFromALostDeviceNamesThatDevice) {
  const auto one = OpenDevice(), two = SecondDevice();
  const auto source = NewInts(one->default_stream(), 10);
  const auto target = NewInts(two->default_stream(), 10);
  FailNextOperation(0, cudaErrorLaunchFailure);
  const auto filling = StartFilling(one->default_stream(), *source, 5);
  RunUnseen(*one);
  ASSERT_TRUE(one->health().ok());
  ExpectLost(two->default_stream().CopyFrom(target->data(), *one, source->data(), 40), "cuda:0");
  ExpectLost(one->health(), "cuda:0");
  EXPECT_TRUE(two->health().ok());
}

// Both devices are healthy until these calls fail. Only the device whose stream was called is lost.
TEST_F(CudaFaultsTest, ACallThatFailsDoesNotLoseTheOtherDevice) {
  for (const bool copies : {true, false}) {
    ResetFakeCuda();
    const auto one = OpenDevice(), two = SecondDevice();
    Stream& to = two->default_stream();
    const auto source = NewInts(one->default_stream(), 10), target = NewInts(to, 10);
    const auto event = RecordOn(one->default_stream());
    FailNextCall(copies ? "cudaMemcpyPeerAsync" : "cudaStreamWaitEvent", cudaErrorUnknown);
    ExpectLost(copies ? to.CopyFrom(target->data(), *one, source->data(), source->size())
                      : to.WaitFor(event),
               "cuda:1");
    EXPECT_TRUE(one->health().ok()) << copies;
    ExpectLost(two->health(), "cuda:1");
  }
}

TEST_F(CudaFaultsTest, TheLossOfADeviceEndsWaitsForIt) {
  const auto one = OpenDevice(), two = SecondDevice();
  Stream& lost = one->default_stream();
  const auto block = NewInts(lost, 10);
  const auto event = RecordOn(lost);
  FailNextOperation(0, cudaErrorLaunchFailure);
  const auto source = StartFilling(lost, *block, 5);
  const auto late = RecordOn(lost);
  RunUnseen(*one);
  EXPECT_TRUE(two->default_stream().WaitFor(late).ok());
  ExpectLost(late->Wait(), "cuda:0");
  FailNextCall("cudaStreamWaitEvent", cudaErrorInvalidValue);  // not called any more
  EXPECT_TRUE(two->default_stream().WaitFor(event).ok());
  EXPECT_TRUE(two->Synchronize().ok());
  EXPECT_EQ(two->default_stream()
                .CopyFrom(NewInts(two->default_stream(), 10)->data(), *one, block->data(), 40)
                .code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace psd::testing
