// Groups whose ranks have GPUs and NCCL, on the fakes of CUDA and of NCCL. Trainer r has cuda:r.

#include <nccl.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/collectives/group.h"
#include "client/psd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/gpu_group.h"
#include "tests/core/device/cuda/fake_cuda.h"

namespace psd {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 2;
constexpr char kFakeLibrary[] = "tests/core/device/cuda/libfake_nccl.so";
constexpr int64_t kLarge = 10'000;
constexpr int64_t kSmall = 8;

Tensor Numbers(int rank, int64_t elements) {
  std::vector<float> numbers(static_cast<size_t>(elements));
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<float>(i % 64 + 100 * static_cast<size_t>(rank));
  return Tensor::Of({elements}, std::move(numbers));
}

class NcclGroupTest : public GpuGroupTest {
 protected:
  ~NcclGroupTest() override { HoldFakeCalls(false); }

  // `libraries` has the file of NCCL for each rank.
  void Begin(const std::vector<std::string>& libraries = {kFakeLibrary, kFakeLibrary}) {
    std::vector<CudaDeviceOptions> gpus = FindGpus().options;
    gpus.resize(kRanks);
    for (size_t rank = 0; rank < gpus.size(); ++rank) gpus[rank].nccl = libraries[rank];
    Open(gpus);
  }
  void ExpectSum(int rank, Group& group, int64_t elements) {
    const Tensor sum = Must(group.AllReduce(There(rank, Numbers(rank, elements))));
    EXPECT_EQ(sum.device(), devices_[rank].get());
    const std::vector<float> numbers = Elements(Must(sum.ToHost()));
    for (size_t i = 0; i < numbers.size(); ++i)
      ASSERT_EQ(numbers[i], static_cast<float>(2 * (i % 64) + 100)) << i;
  }
  // Calls of NCCL take no effect until it is called with false.
  static void HoldFakeCalls(bool held) { testing::HoldFakeCalls("ncclCommGetAsyncError", held); }
  static void AwaitFakeCalls(const std::string& function, int calls) {
    while (testing::FakeCalls(function) < calls) std::this_thread::yield();
  }
};

TEST_F(NcclGroupTest, TheGpusPerformLargeCalls) {
  Begin();
  OnAll([&](int rank, Group& group) {
    ExpectSum(rank, group, kLarge);
    const Tensor mine = There(rank, Numbers(rank, kLarge));
    const Tensor part = Must(group.ReduceScatter(mine, Reduction::kMean));
    EXPECT_EQ(part.shape(), Shape({kLarge / kRanks}));
    EXPECT_EQ(Elements(Must(part.ToHost()))[1],
              static_cast<float>((rank * kLarge / kRanks + 1) % 64 + 50));
    const std::vector<Tensor> all = Must(group.AllGather(mine));
    const std::vector<Tensor> gathered = Must(group.Gather(mine, /*root=*/1));
    EXPECT_EQ(gathered.size(), rank == 1 ? size_t{kRanks} : 0u);
    for (int from = 0; from < kRanks; ++from) {
      EXPECT_EQ(all[from].device(), devices_[rank].get());
      EXPECT_TRUE(SameBits(all[from], Numbers(from, kLarge)));
    }
    for (size_t from = 0; from < gathered.size(); ++from)
      EXPECT_TRUE(SameBits(gathered[from], Numbers(static_cast<int>(from), kLarge)));
    EXPECT_TRUE(SameBits(Must(group.Broadcast(mine, /*root=*/0)), Numbers(0, kLarge)));
    return absl::OkStatus();
  });
  for (const char* function : {"ncclCommInitRankConfig", "ncclAllReduce", "ncclReduceScatter",
                               "ncclAllGather", "ncclGather", "ncclBroadcast"})
    EXPECT_EQ(testing::FakeCalls(function), kRanks) << function;
  EXPECT_THAT(Log(), Not(HasSubstr("group_through_host")));
}

TEST_F(NcclGroupTest, OtherCallsGoThroughTheHost) {
  Begin();
  OnAll([&](int rank, Group& group) {
    ExpectSum(rank, group, kSmall);
    const Tensor mine = There(rank, Numbers(rank, kLarge));
    EXPECT_TRUE(SameBits(Must(group.AllReduce(mine, Reduction::kMax)), Numbers(1, kLarge)));
    EXPECT_TRUE(SameBits(Must(group.Broadcast(rank == 0 ? mine : Tensor(), /*root=*/0)),
                         Numbers(0, kLarge)));
    EXPECT_TRUE(SameBits(Must(group.Broadcast(There(rank, Numbers(rank, kSmall)), /*root=*/1)),
                         Numbers(1, kSmall)));
    EXPECT_TRUE(group.AllReduce(Numbers(rank, kLarge)).ok());
    return group.Barrier();
  });
  EXPECT_EQ(testing::FakeCalls("ncclCommInitRankConfig"), 0);
}

TEST_F(NcclGroupTest, ATensorElsewhereSendsTheCallThroughTheHostAndTheLogSaysWhyOnce) {
  Begin();
  for (int i = 0; i < 2; ++i) {
    OnAll([&](int rank, Group& group) {
      const Tensor here = Numbers(rank, kLarge);
      const Tensor sum = Must(group.AllReduce(rank == 0 ? There(0, here) : here));
      EXPECT_EQ(sum.OnHost(), rank != 0);
      EXPECT_EQ(Elements(Must(sum.ToHost()))[1], 102);
      return absl::OkStatus();
    });
  }
  OnAll([&](int rank, Group& group) {
    // Both tensors are on cuda:0.
    return group.AllReduce(There(0, Numbers(rank, kLarge))).status();
  });
  OnAll([&](int rank, Group& group) {
    ExpectSum(rank, group, kLarge);  // the next call is one for NCCL again
    return absl::OkStatus();
  });
  EXPECT_EQ(testing::FakeCalls("ncclAllReduce"), kRanks);
  const std::string log = Log();
  const std::string why = "t1 has its tensor elsewhere";
  EXPECT_THAT(log, HasSubstr(why));
  size_t lines = 0;
  for (size_t at = log.find(why); at != std::string::npos; at = log.find(why, at + 1)) ++lines;
  EXPECT_EQ(lines, size_t{kRanks});
  EXPECT_THAT(log, HasSubstr("t0 and t1 share a GPU"));
}

TEST_F(NcclGroupTest, SeveralCallsUnderWayKeepTheirOrder) {
  Begin();
  OnAll([&](int rank, Group& group) {
    std::vector<Future<Tensor>> large, small, here;
    for (int i = 0; i < 8; ++i) {
      large.push_back(group.AllReduceAsync(There(rank, Numbers(rank + i, kLarge))));
      small.push_back(group.AllReduceAsync(There(rank, Numbers(rank + i, kSmall))));
      here.push_back(group.AllReduceAsync(Numbers(rank + i, kLarge)));
    }
    for (int i = 0; i < 8; ++i) {
      for (const auto& sums : {large, small, here})
        EXPECT_EQ(Elements(Must(Must(sums[i].Wait()).ToHost()))[1], 102 + 200 * i);
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(testing::FakeCalls("ncclAllReduce"), 8 * kRanks);
}

TEST_F(NcclGroupTest, NothingIsConnectedForACallThatNotAllRanksMake) {
  Begin();
  const absl::Status late =
      groups_[0]
          ->AllReduce(There(0, Numbers(0, kLarge)), Reduction::kSum, {absl::Milliseconds(200), ""})
          .status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Culprit(late), "t1");
  EXPECT_EQ(testing::FakeCalls("ncclCommInitRankConfig"), 0);
}

// ---- without a common NCCL

TEST_F(NcclGroupTest, AMissingLibraryIsLogged) {
  Begin({kFakeLibrary, "/nowhere/libnccl.so"});
  OnAll([&](int rank, Group& group) {
    ExpectSum(rank, group, kLarge);
    return absl::OkStatus();
  });
  EXPECT_EQ(testing::FakeCalls("ncclCommInitRankConfig"), 0);
  const std::string log = Log();
  EXPECT_THAT(log, HasSubstr("t1 has no library for its GPU"));
  EXPECT_THAT(log, HasSubstr("cuda:1 cannot communicate with other GPUs without NCCL"));
}

TEST_F(NcclGroupTest, VersionsThatDifferAreLogged) {
  Begin();
  testing::FailNextCall("ncclGetVersion", NCCL_VERSION_CODE + 100);
  ASSERT_TRUE(devices_[1]->collectives()->Library().ok());
  OnAll([&](int rank, Group& group) {
    ExpectSum(rank, group, kLarge);
    return absl::OkStatus();
  });
  EXPECT_EQ(testing::FakeCalls("ncclCommInitRankConfig"), 0);
  EXPECT_THAT(
      Log(), HasSubstr(absl::StrCat("t0 has ", Must(devices_[0]->collectives()->Library()),
                                    ", and t1 has ", Must(devices_[1]->collectives()->Library()))));
}

TEST_F(NcclGroupTest, ARankThatCannotConnectSendsAllThroughTheHostForEver) {
  Begin();
  testing::FailNextCall("ncclCommInitRankConfig", ncclSystemError);
  for (int i = 0; i < 2; ++i) {
    OnAll([&](int rank, Group& group) {
      EXPECT_TRUE(group
                      .AllReduce(There(rank, Numbers(rank, kLarge)), Reduction::kSum,
                                 {absl::Seconds(30), ""})
                      .ok());
      return absl::OkStatus();
    });
  }
  EXPECT_EQ(testing::FakeCalls("ncclCommInitRankConfig"), kRanks);
  EXPECT_EQ(testing::FakeCalls("ncclAllReduce"), 0);
  EXPECT_THAT(Log(), HasSubstr("could not connect to the other GPUs"));
}

TEST_F(NcclGroupTest, WithoutAnIdAllGoThroughTheHost) {
  Begin();
  testing::FailNextCall("ncclGetUniqueId", ncclSystemError);
  OnAll([&](int rank, Group& group) {
    ExpectSum(rank, group, kLarge);
    return absl::OkStatus();
  });
  EXPECT_EQ(testing::FakeCalls("ncclCommInitRankConfig"), 0);
  EXPECT_THAT(Log(), HasSubstr("ncclGetUniqueId failed on cuda:0"));
}

// ---- faults

TEST_F(NcclGroupTest, ARankThatDiesInACallIsNamedAndHangsNobody) {
  Begin();
  OnAll([&](int rank, Group& group) {
    ExpectSum(rank, group, kLarge);
    return absl::OkStatus();
  });
  // The work of rank 1 never comes to the call, so that of rank 0 waits on its GPU.
  const Tensor room = RoomOn(1, kLarge);
  HeldGpu held(*devices_[1], 1);
  Future<Tensor> dying;
  const auto statuses = OnAll([&](int rank, Group& group) {
    if (rank == 0) return group.AllReduce(There(0, Numbers(0, kLarge))).status();
    dying = group.AllReduceAsync(room);
    AwaitFakeCalls("ncclAllReduce", 2 * kRanks);
    Kill(1);
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses[0].code(),
              AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kAborted));
  EXPECT_EQ(Culprit(statuses[0]), "t1");
  AwaitFakeCalls("ncclCommAbort", 1);
  held.Release();
  EXPECT_FALSE(dying.Wait().ok());
}

TEST_F(NcclGroupTest, AGroupThatFailsWhileACallIsBeingAddedEndsIt) {
  Begin();
  OnAll([&](int rank, Group& group) {
    ExpectSum(rank, group, kLarge);
    return absl::OkStatus();
  });
  HoldFakeCalls(true);
  const auto statuses = OnAll([&](int rank, Group& group) {
    const Future<Tensor> sum = group.AllReduceAsync(There(rank, Numbers(rank, kLarge)));
    if (rank == 1) {
      AwaitFakeCalls("ncclAllReduce", 2 * kRanks);
      group.Fail(absl::DataLossError("the next batch is broken")).IgnoreError();
    }
    return sum.Wait().status();
  });
  for (const absl::Status& status : statuses)
    EXPECT_THAT(Text(status), HasSubstr("the next batch is broken"));
  AwaitFakeCalls("ncclCommAbort", kRanks);
}

TEST_F(NcclGroupTest, AGroupThatFailsWhileItConnectsEndsThat) {
  Begin();
  HoldFakeCalls(true);
  const auto statuses = OnAll([&](int rank, Group& group) {
    const Future<Tensor> sum = group.AllReduceAsync(There(rank, Numbers(rank, kLarge)));
    if (rank == 1) {
      AwaitFakeCalls("ncclCommInitRankConfig", kRanks);
      group.Fail(absl::DataLossError("the next batch is broken")).IgnoreError();
    }
    return sum.Wait().status();
  });
  for (const absl::Status& status : statuses)
    EXPECT_THAT(Text(status), HasSubstr("the next batch is broken"));
  AwaitFakeCalls("ncclCommAbort", kRanks);
}

TEST_F(NcclGroupTest, AnErrorOfNcclFailsTheGroupAndNamesTheRank) {
  Begin();
  testing::FailNextCall("ncclAllReduce", ncclInternalError);
  const auto statuses = OnAll([&](int rank, Group& group) {
    return group.AllReduce(There(rank, Numbers(rank, kLarge))).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(Text(status), HasSubstr("ncclAllReduce failed on cuda:"));
  }
  const int failed = absl::StrContains(Text(statuses[0]), "failed on cuda:0") ? 0 : 1;
  EXPECT_EQ(Culprit(statuses[1 - failed]), absl::StrCat("t", failed));
}

TEST_F(NcclGroupTest, ACallThatDoesNotBeginInItsTimeFailsTheGroup) {
  Begin();
  OnAll([&](int rank, Group& group) {
    ExpectSum(rank, group, kLarge);
    return absl::OkStatus();
  });
  HoldFakeCalls(true);
  OnAll([&](int rank, Group& group) {
    const Future<Tensor> held = group.AllReduceAsync(There(rank, Numbers(rank, kLarge)));
    const absl::Status behind = group
                                    .AllReduce(There(rank, Numbers(rank, kLarge)), Reduction::kSum,
                                               {absl::Milliseconds(200), ""})
                                    .status();
    EXPECT_EQ(behind.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(Text(behind), HasSubstr("did not begin in its time"));
    EXPECT_FALSE(held.Wait().ok());
    return absl::OkStatus();
  });
}

TEST_F(NcclGroupTest, RanksLeaveAfterTheirCallsAreOver) {
  Begin();
  OnAll([&](int rank, Group& group) {
    ExpectSum(rank, group, kLarge);
    return absl::OkStatus();
  });
  const Tensor room = RoomOn(1, kLarge);
  HeldGpu held(*devices_[1], 1);
  std::thread release([&held] {
    AwaitFakeCalls("ncclAllReduce", 2 * kRanks);
    absl::SleepFor(absl::Milliseconds(50));  // both ranks are leaving by now
    held.Release();
  });
  const auto statuses = OnAll([&](int rank, Group& group) {
    const Future<Tensor> sum =
        group.AllReduceAsync(rank == 0 ? There(0, Numbers(0, kLarge)) : room);
    group.Leave();
    return sum.Wait().status();
  });
  release.join();
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(NcclGroupTest, RanksThatLeaveTogetherFinish) {
  Begin();
  OnAll([&](int rank, Group& group) {
    ExpectSum(rank, group, kLarge);
    group.Leave();
    return absl::OkStatus();
  });
  AwaitFakeCalls("ncclCommDestroy", kRanks);
  EXPECT_EQ(testing::FakeCalls("ncclCommAbort"), 0);
}

}  // namespace
}  // namespace psd
