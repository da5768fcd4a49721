// The operations of a group on tensors of emulated devices. Results have the bits that tensors of
// the host give, and are where the rank's own tensor is. With seed 0 a device does only what is
// waited for, so an input that is read too early has wrong elements.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/collectives/group.h"
#include "client/psd.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/device/emulated/emulated_device.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/shape_ops.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/test_world.h"
#include "tests/device/test_device.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr size_t kBudgetBytes = size_t{64} << 20;
constexpr int64_t kSmall = 6;
constexpr int64_t kLarge = 300'003;  // a piece and more for each rank

// The input of a rank, on the host.
Tensor Input(int rank, int64_t elements) {
  std::vector<float> numbers(static_cast<size_t>(elements));
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = 0.37f * static_cast<float>((i * 31 + static_cast<size_t>(rank) * 17) % 101);
  return Tensor::Of({elements}, std::move(numbers));
}

class DeviceTensorsTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  // The device of a rank's tensors: rank 0 has emu:1, rank 1 has emu:0, and rank 2 the host.
  Device* DeviceOf(int rank) const { return rank < 2 ? devices_[1 - rank].get() : nullptr; }
  // Returns the tensor on the rank's device, where work that computes it is still under way.
  Tensor There(int rank, const Tensor& tensor) const {
    return Must(ops::Mul(Must(CopyTo(DeviceOf(rank), tensor)), 1.0));
  }
  // Runs f on all ranks at the same time.
  void OnAll(const std::function<void(int rank, Group& group)>& f) const {
    InParallel(kRanks, [&](int rank) { f(rank, *groups_[rank]); });
  }
  void ExpectThere(int rank, const Tensor& result, const Tensor& expected) const {
    EXPECT_EQ(DeviceName(result.device()), DeviceName(DeviceOf(rank))) << "on rank " << rank;
    EXPECT_TRUE(SameBits(result, expected)) << "on rank " << rank;
  }
  EmulatedDevice& OfRank(int rank) const { return *devices_[1 - rank]; }

  std::vector<std::shared_ptr<EmulatedDevice>> devices_ =
      testing::NewTestDevices(2, GetParam(), kBudgetBytes);
  GroupWorld world_{
      kRanks, /*shared_memory=*/true, /*memory_budget_bytes=*/0, {devices_[0], devices_[1]}};
  std::vector<std::shared_ptr<Group>> groups_ = world_.JoinAll("ranks");
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceTensorsTest, ::testing::Values(0, 1));

TEST_P(DeviceTensorsTest, DDP_31_ReductionsHaveTheBitsOfTensorsOnTheHost) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    for (const int64_t elements : {int64_t{0}, kSmall, kLarge}) {
      OnAll([&](int rank, Group& group) {
        const Tensor here = Must(ops::Cast(Input(rank, elements), dtype));
        const Tensor there = Must(CopyTo(DeviceOf(rank), here));
        for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMax}) {
          const Tensor expected = Must(group.AllReduce(here, reduction));
          ExpectThere(rank, Must(group.AllReduce(there, reduction)), expected);
        }
        const Tensor expected = Must(group.ReduceScatter(here));
        ExpectThere(rank, Must(group.ReduceScatter(there)), expected);
      });
    }
  }
}

TEST_P(DeviceTensorsTest, ResultsOfOperationsThatMoveTensorsAreOnTheRanksDevice) {
  for (const int64_t elements : {kSmall, kLarge}) {
    OnAll([&](int rank, Group& group) {
      const Tensor mine = There(rank, Input(rank, elements));
      const std::vector<Tensor> all = Must(group.AllGather(mine));
      const std::vector<Tensor> gathered = Must(group.Gather(mine, /*root=*/1));
      ASSERT_EQ(gathered.size(), rank == 1 ? size_t{kRanks} : 0u);
      for (int from = 0; from < kRanks; ++from) {
        ExpectThere(rank, all[from], Input(from, elements));
        if (rank == 1) ExpectThere(rank, gathered[from], Input(from, elements));
      }
      ExpectThere(rank, Must(group.Broadcast(mine, /*root=*/0)), Input(0, elements));
    });
  }
}

TEST_P(DeviceTensorsTest, ARankThatGivesNoTensorGetsTheResultOnTheHost) {
  OnAll([&](int rank, Group& group) {
    const Tensor given =
        Must(group.Broadcast(rank == 0 ? There(0, Input(0, kLarge)) : Tensor(), /*root=*/0));
    EXPECT_EQ(given.OnHost(), rank != 0);
    EXPECT_TRUE(SameBits(given, Input(0, kLarge)));
    std::vector<Tensor> parts;
    for (int to = 0; rank == 1 && to < kRanks; ++to) parts.push_back(There(1, Input(to, kSmall)));
    const Tensor part = Must(group.Scatter(parts, /*root=*/1));
    EXPECT_EQ(part.OnHost(), rank != 1);
    EXPECT_TRUE(SameBits(part, Input(rank, kSmall)));
    if (rank == 0) {
      EXPECT_TRUE(group.Send(There(0, Input(7, kSmall)), 1).ok());
    } else if (rank == 1) {
      const Tensor received = Must(group.Receive(0));
      EXPECT_TRUE(received.OnHost());
      EXPECT_TRUE(SameBits(received, Input(7, kSmall)));
    }
  });
}

TEST_P(DeviceTensorsTest, SeveralCallsUnderWayAndStridedTensors) {
  OnAll([&](int rank, Group& group) {
    const Tensor wide = Must(ops::Reshape(There(rank, Input(rank, kSmall)), {2, 3}));
    const Tensor turned = Must(ops::Transpose(wide, 0, 1));
    std::vector<Future<Tensor>> sums;
    for (int i = 0; i < 5; ++i) {
      sums.push_back(group.AllReduceAsync(turned));
      sums.push_back(group.AllReduceAsync(There(rank, Input(rank, kLarge))));
    }
    const Tensor small = Must(group.AllReduce(Must(CopyTo(nullptr, turned))));
    const Tensor large = Must(group.AllReduce(Input(rank, kLarge)));
    for (size_t i = 0; i < sums.size(); ++i)
      ExpectThere(rank, Must(sums[i].Wait()), i % 2 == 0 ? small : large);
  });
}

TEST_P(DeviceTensorsTest, InAGroupOfOneNothingLeavesTheDevice) {
  GroupOptions alone;
  alone.members = {world_.workers[0]->name()};
  const auto group = Must(Group::Join(*world_.workers[0], "alone", alone));
  const Tensor mine = There(0, Input(0, kSmall));
  EXPECT_EQ(Must(group->AllReduce(mine)).address(), mine.address());
  EXPECT_EQ(Must(group->AllGather(mine))[0].address(), mine.address());
}

TEST_P(DeviceTensorsTest, ATensorOnAnotherWorkersDeviceIsRefusedAndTheCallDoesNotCount) {
  const auto other = testing::NewTestDevice(GetParam());
  OnAll([&](int rank, Group& group) {
    if (rank == 0) {
      const Tensor foreign = Must(CopyTo(other.get(), Input(0, kSmall)));
      const absl::Status refused = group.AllReduce(foreign).status();
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("emu:0, which is no device of this"));
    }
    EXPECT_TRUE(group.AllReduce(There(rank, Input(rank, kSmall))).ok());
  });
}

TEST_P(DeviceTensorsTest, AScatterOfTensorsInSeveralPlacesIsRefusedAndTheCallDoesNotCount) {
  OnAll([&](int rank, Group& group) {
    const Tensor here = Input(0, kSmall);
    std::vector<Tensor> tensors;
    if (rank == 0) {
      const Tensor there = There(0, here);
      for (const Tensor& last : {here, There(1, here)}) {
        const absl::Status refused = group.Scatter({there, there, last}, 0).status();
        EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
        EXPECT_THAT(std::string(refused.message()),
                    HasSubstr("on emu:1 and on " + std::string(DeviceName(last.device()))));
      }
      tensors = {there, there, there};
    }
    EXPECT_TRUE(SameBits(Must(group.Scatter(tensors, 0)), here)) << "on rank " << rank;
  });
}

TEST_P(DeviceTensorsTest, ALostDeviceIsNamedAndTheCallDoesNotCount) {
  OnAll([&](int rank, Group& group) {
    if (rank == 0) {
      const Tensor mine = There(0, Input(0, kSmall));
      OfRank(0).Lose("it fell off the bus");
      const absl::Status lost = group.AllReduce(mine).status();
      EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
      EXPECT_THAT(std::string(lost.message()), HasSubstr("emu:1"));
      EXPECT_TRUE(group.status().ok());
    }
    const Tensor here = Input(rank, kSmall);
    EXPECT_TRUE(group.AllReduce(rank == 0 ? here : There(rank, here)).ok());
  });
}

TEST_P(DeviceTensorsTest, AResultThatFindsNoRoomFailsTheGroupAndNamesTheRank) {
  const Tensor mine = There(1, Input(1, kSmall));
  ASSERT_TRUE(OfRank(1).Synchronize().ok());
  OfRank(1).FailAllocation(1);
  OnAll([&](int rank, Group& group) {
    absl::Status status;
    // Others may complete the call before they are told.
    while (status.ok())
      status = group.AllReduce(rank == 1 ? mine : There(rank, Input(rank, kSmall))).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    if (rank == 1) return;
    EXPECT_EQ(GetDetail(status)->worker, "t1");
  });
}

}  // namespace
}  // namespace psd
