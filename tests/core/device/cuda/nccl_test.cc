// Communicators of CUDA devices, on the fakes of CUDA and of NCCL. Each rank is a thread with a
// device of its own.

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "core/base/buffer.h"
#include "core/base/device_collectives.h"
#include "core/base/status.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/nccl.h"
#include "gmock/gmock.h"
#include "tests/core/device/cuda/cuda_suite.h"
#include "tests/core/device/cuda/fake_cuda.h"

namespace psd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kFakeLibrary[] = "tests/core/device/cuda/libfake_nccl.so";
constexpr int kRanks = 2;

class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(kFakeLibrary); }

  void Open(const std::string& library) {
    Close();
    ResetFakeCuda();
    for (int rank = 0; rank < kRanks; ++rank) {
      CudaDeviceOptions options;
      options.index = rank;
      options.nccl = library;
      devices_[rank] = OpenDevice(options);
    }
  }
  void Close() {
    for (int rank = 0; rank < kRanks; ++rank) {
      communicators_[rank].reset();
      devices_[rank].reset();
    }
  }

  // Calls f for each rank, on a thread of its own.
  static void OnAll(const std::function<void(int)>& f) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back([&f, rank] { f(rank); });
    for (std::thread& thread : threads) thread.join();
  }
  // Asks until the communicator is ready or has failed.
  static absl::Status Await(DeviceCommunicator& communicator) {
    for (;;) {
      const absl::StatusOr<bool> ready = communicator.IsReady();
      if (!ready.ok() || *ready) return ready.status();
      std::this_thread::yield();
    }
  }
  void Connect() {
    const std::string id = devices_[0]->collectives()->NewId().value();
    OnAll([&](int rank) {
      communicators_[rank] = devices_[rank]->collectives()->Connect(id, rank, kRanks).value();
      const absl::Status connected = Await(*communicators_[rank]);
      ASSERT_TRUE(connected.ok()) << connected;
    });
  }
  Stream& StreamOf(int rank) { return communicators_[rank]->stream(); }

  // Returns a block of the rank's stream whose elements will be `value`.
  std::shared_ptr<Block> Filled(int rank, size_t count, int value) {
    auto block = NewInts(StreamOf(rank), count);
    kept_[rank].push_back(StartFilling(StreamOf(rank), *block, value));
    return block;
  }
  // Waits for the rank's work, and returns the elements.
  std::vector<int> Read(int rank, const Block& block) {
    const auto pinned = StartReading(StreamOf(rank), block);
    const absl::Status done = RecordOn(StreamOf(rank))->Wait();
    EXPECT_TRUE(done.ok()) << done;
    return Ints(*pinned);
  }
  // Lets all ranks make a call with an input of two elements, 1 on rank 0 and 2 on rank 1, and
  // returns what each rank has then in a block of `count` elements, which were 9.
  using Call = std::function<absl::Status(DeviceCommunicator&, const std::byte*, std::byte*)>;
  std::array<std::vector<int>, kRanks> Results(size_t count, const Call& call) {
    std::array<std::vector<int>, kRanks> results;
    OnAll([&](int rank) {
      const auto in = Filled(rank, 2, rank + 1);
      const auto out = Filled(rank, count, 9);
      const absl::Status added = call(*communicators_[rank], in->data(), out->data());
      ASSERT_TRUE(added.ok()) << added;
      ASSERT_TRUE(Await(*communicators_[rank]).ok());
      results[rank] = Read(rank, *out);
    });
    return results;
  }
  absl::Status AddSum(int rank, const Block& in, const Block& out) {
    return communicators_[rank]->AllReduce(in.data(), out.data(), in.size() / sizeof(int),
                                           DeviceElement::kI32, DeviceReduction::kSum);
  }

  std::array<std::shared_ptr<CudaDevice>, kRanks> devices_;
  std::array<std::shared_ptr<DeviceCommunicator>, kRanks> communicators_;
  std::array<std::vector<std::shared_ptr<Block>>, kRanks> kept_;  // pinned memory
};

TEST_F(NcclTest, EveryOperationIsPerformedBehindTheWorkOfItsStream) {
  Connect();
  const auto sums = Results(2, [](DeviceCommunicator& c, const std::byte* in, std::byte* out) {
    return c.AllReduce(in, out, 2, DeviceElement::kI32, DeviceReduction::kSum);
  });
  const auto most = Results(2, [](DeviceCommunicator& c, const std::byte* in, std::byte* out) {
    return c.AllReduce(in, out, 2, DeviceElement::kI32, DeviceReduction::kMax);
  });
  const auto parts = Results(1, [](DeviceCommunicator& c, const std::byte* in, std::byte* out) {
    return c.ReduceScatter(in, out, 1, DeviceElement::kI32, DeviceReduction::kMin);
  });
  const auto all = Results(4, [](DeviceCommunicator& c, const std::byte* in, std::byte* out) {
    return c.AllGather(in, out, 2 * sizeof(int));
  });
  const auto given = Results(2, [](DeviceCommunicator& c, const std::byte* in, std::byte* out) {
    return c.Broadcast(in, out, 2 * sizeof(int), /*root=*/1);
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(sums[rank], ElementsAre(3, 3));
    EXPECT_THAT(most[rank], ElementsAre(2, 2));
    EXPECT_THAT(parts[rank], ElementsAre(1));
    EXPECT_THAT(all[rank], ElementsAre(1, 1, 2, 2));
    EXPECT_THAT(given[rank], ElementsAre(2, 2));
  }
  const auto gathered = Results(4, [](DeviceCommunicator& c, const std::byte* in, std::byte* out) {
    return c.Gather(in, out, 2 * sizeof(int), /*root=*/1);
  });
  EXPECT_THAT(gathered[0], ElementsAre(9, 9, 9, 9));
  EXPECT_THAT(gathered[1], ElementsAre(1, 1, 2, 2));
}

TEST_F(NcclTest, AGpuIsNamedByItsUuidAndTheLibraryByItsVersion) {
  EXPECT_EQ(devices_[0]->collectives()->Identity().value(), "10101010101010101010101010101010");
  EXPECT_NE(devices_[0]->collectives()->Identity().value(),
            devices_[1]->collectives()->Identity().value());
  EXPECT_EQ(devices_[0]->collectives()->Library().value(),
            "NCCL " + cuda::NcclVersionText(NCCL_VERSION_CODE));
}

// ---- aborts

TEST_F(NcclTest, AnAbortEndsWorkThatWaitsForAnotherRank) {
  Connect();
  const auto in = Filled(0, 2, 1), out = Filled(0, 2, 9);
  ASSERT_TRUE(AddSum(0, *in, *out).ok());
  ASSERT_TRUE(Await(*communicators_[0]).ok());
  const auto done = RecordOn(StreamOf(0));
  EXPECT_FALSE(done->passed());
  std::thread waits([&] { EXPECT_TRUE(done->Wait().ok()); });
  communicators_[0]->Abort();
  waits.join();
  EXPECT_EQ(communicators_[0]->IsReady().status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(AddSum(0, *in, *out).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(devices_[0]->health().ok());
  communicators_[0]->Abort();  // may be repeated
  EXPECT_EQ(FakeCalls("ncclCommAbort"), 1);
}

TEST_F(NcclTest, ARankWhosePeerNeverConnectsCanAbort) {
  const std::string id = devices_[0]->collectives()->NewId().value();
  const auto alone = devices_[0]->collectives()->Connect(id, 0, kRanks).value();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(alone->IsReady().value());
  alone->Abort();
  EXPECT_EQ(alone->IsReady().status().code(), absl::StatusCode::kAborted);
}

TEST_F(NcclTest, ACallThatHasNotTakenEffectCanBeAborted) {
  Connect();
  const auto in = Filled(0, 2, 1), out = Filled(0, 2, 9);
  HoldFakeCalls("ncclCommGetAsyncError", true);
  ASSERT_TRUE(AddSum(0, *in, *out).ok());
  EXPECT_FALSE(communicators_[0]->IsReady().value());
  communicators_[0]->Abort();
  EXPECT_THAT(Read(0, *out), ElementsAre(9, 9));
}

TEST_F(NcclTest, CommunicatorsThatFinishAreDestroyedAndTheirStreamsAreUsedAgain) {
  std::array<Stream*, kRanks> streams = {};
  for (int i = 0; i < 40; ++i) {  // more than a device has streams
    Connect();
    OnAll([&](int rank) {
      if (i == 0) streams[rank] = &StreamOf(rank);
      EXPECT_EQ(&StreamOf(rank), streams[rank]);
      ASSERT_TRUE(communicators_[rank]->Finish().ok());
      ASSERT_TRUE(Await(*communicators_[rank]).ok());
      communicators_[rank].reset();
    });
  }
  EXPECT_EQ(FakeCalls("ncclCommDestroy"), 40 * kRanks);
  EXPECT_EQ(FakeCalls("ncclCommAbort"), 0);
  Close();
  EXPECT_EQ(LivingFakeObjects(), 0);
}

TEST_F(NcclTest, OneRankAloneDoesNotFinish) {
  Connect();
  ASSERT_TRUE(communicators_[0]->Finish().ok());
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(communicators_[0]->IsReady().value());
  communicators_[0].reset();
  EXPECT_EQ(FakeCalls("ncclCommAbort"), 1);
}

// ---- errors

void ExpectNoNccl(const absl::Status& status, const std::string& why) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              HasSubstr("cuda:0 cannot communicate with other GPUs without NCCL: "));
  EXPECT_THAT(status.message(), HasSubstr(why));
  EXPECT_THAT(GetDetail(status)->remedy, HasSubstr("LD_LIBRARY_PATH"));
}

TEST_F(NcclTest, AMissingLibraryIsNamedAndTheDeviceGoesOn) {
  Open("/nowhere/libnccl.so");
  ExpectNoNccl(devices_[0]->collectives()->Library().status(), "/nowhere/libnccl.so: cannot open");
  ExpectNoNccl(devices_[0]->collectives()->NewId().status(), "/nowhere/libnccl.so: cannot open");
  EXPECT_TRUE(devices_[0]->health().ok());
}

TEST_F(NcclTest, AnotherLibraryAndOtherVersionsAreRefused) {
  Open("libm.so.6");
  ExpectNoNccl(devices_[0]->collectives()->Library().status(),
               "libm.so.6 has no function ncclGetVersion");
  Open(kFakeLibrary);
  FailNextCall("ncclGetVersion", 21803);
  ExpectNoNccl(devices_[0]->collectives()->Library().status(),
               "libfake_nccl.so has version 2.18.3, and this psd needs " +
                   cuda::NcclVersionText(NCCL_VERSION_CODE) + " or a newer 2.x");
  FailNextCall("ncclGetVersion", 30000);
  ExpectNoNccl(devices_[0]->collectives()->Library().status(), "has version 3.0.0");
  FailNextCall("ncclGetVersion", NCCL_VERSION_CODE + 100);
  EXPECT_TRUE(devices_[0]->collectives()->Library().ok());  // a newer one will do
}

// Where NCCL is installed. Without a GPU it can be loaded, and no more.
TEST(RealNcclTest, TheInstalledLibraryHasAllFunctions) {
  const auto nccl = cuda::LoadNccl("cuda:0", "");
  if (absl::IsFailedPrecondition(nccl.status()) &&
      absl::StrContains(nccl.status().message(), "cannot open shared object file"))
    GTEST_SKIP() << nccl.status().message();
  ASSERT_TRUE(nccl.ok()) << nccl.status();
  EXPECT_GE(nccl->version, NCCL_VERSION_CODE);
}

TEST_F(NcclTest, ErrorsOfTheLibraryAreQuoted) {
  FailNextCall("ncclGetUniqueId", ncclSystemError);
  EXPECT_THAT(std::string(devices_[0]->collectives()->NewId().status().message()),
              HasSubstr("ncclGetUniqueId failed on cuda:0: an error of the fake (2)"));
  const std::string id = devices_[0]->collectives()->NewId().value();
  FailNextCall("ncclCommInitRankConfig", ncclSystemError);
  const auto refused = devices_[0]->collectives()->Connect(id, 0, kRanks);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("ncclCommInitRankConfig failed on cuda:0: an error of the fake (2), which "
                        "says no more"));
  Connect();
  FailNextCall("ncclCommGetAsyncError", ncclRemoteError);
  EXPECT_THAT(std::string(communicators_[0]->IsReady().status().message()),
              HasSubstr("work that was added earlier failed on cuda:0"));
  EXPECT_TRUE(devices_[0]->health().ok());
}

TEST_F(NcclTest, ALostDeviceIsNamed) {
  Connect();
  const auto in = Filled(0, 2, 1), out = Filled(0, 2, 9);
  FailNextCall("ncclAllReduce", ncclUnhandledCudaError);
  FailNextCall("cudaStreamQuery", cudaErrorIllegalAddress);
  const absl::Status lost = AddSum(0, *in, *out);
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(lost.message()), HasSubstr("cuda:0 is lost: ncclAllReduce"));
  EXPECT_EQ(communicators_[0]->IsReady().status(), lost);
}

}  // namespace
}  // namespace psd::testing
