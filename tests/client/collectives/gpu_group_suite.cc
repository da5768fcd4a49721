// Tests of collective operations that GPUs perform. They run on the fakes of CUDA and NCCL, and on
// real GPUs with NCCL. Results are compared with those of tensors on the host.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/collectives/parcels.h"
#include "core/base/device_collectives.h"
#include "core/tensor/ops/cast.h"
#include "gmock/gmock.h"
#include "tests/client/collectives/gpu_group.h"

namespace psd {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// At least 32 KiB in every type, so that GPUs perform the call; parts are no whole lines.
constexpr int64_t kLarge = 50'001;

class GpuGroupSuite : public GpuGroupTest {
 protected:
  void SetUp() override {
    const Gpus gpus = FindGpus();
    if (!gpus.missing.empty()) GTEST_SKIP() << gpus.missing;
    Open(gpus.options);
    DeviceCollectives* const collectives = devices_[0]->collectives();
    if (collectives == nullptr) GTEST_SKIP() << "psd was built without the header of NCCL";
    if (const auto library = collectives->Library(); !library.ok())
      GTEST_SKIP() << library.status();
  }

  // Small whole numbers, which have exact sums and means in every type and order.
  Tensor Whole(int rank, int64_t elements, DType dtype) {
    std::vector<float> numbers(static_cast<size_t>(elements));
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] =
          static_cast<float>(static_cast<int>(i % 8) * ranks() + (rank == 0 ? ranks() : 0));
    return Must(ops::Cast(Tensor::Of<float>({elements}, std::move(numbers)), dtype));
  }
  Tensor Numbers(int rank, int64_t elements) { return Whole(rank, elements, DType::kF32); }

  // Numbers of very different sizes, whose sum depends on the order.
  static float Uneven(int rank, size_t i) {
    return std::ldexp(
        1.0f + 0.37f * static_cast<float>((i * 31 + static_cast<size_t>(rank) * 17) % 29),
        static_cast<int>((i * 7 + static_cast<size_t>(rank) * 11) % 40) - 20);
  }

  void ExpectNoHost() { EXPECT_THAT(Log(), Not(HasSubstr("group_through_host"))); }
  void ExpectSums() {
    OnAll([&](int rank, Group& group) {
      const Tensor sum = Must(group.AllReduce(There(rank, Numbers(rank, kLarge))));
      EXPECT_EQ(sum.device(), devices_[rank].get());
      EXPECT_EQ(Elements(Must(sum.ToHost()))[1], static_cast<float>(ranks() * ranks() + ranks()));
      return absl::OkStatus();
    });
  }
};

TEST_F(GpuGroupSuite, ReductionsOfEveryTypeAreThoseOfTheHost) {
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32}) {
    for (const Reduction reduction :
         {Reduction::kSum, Reduction::kMean, Reduction::kMin, Reduction::kMax}) {
      const bool whole = dtype == DType::kI64 || dtype == DType::kI32;
      if (whole && reduction == Reduction::kMean) continue;
      OnAll([&](int rank, Group& group) {
        const Tensor here = Whole(rank, kLarge, dtype);
        const Tensor expected = Must(group.AllReduce(here, reduction));
        const Tensor found = Must(group.AllReduce(There(rank, here), reduction));
        EXPECT_EQ(found.device(), devices_[rank].get());
        EXPECT_TRUE(SameBits(found, expected))
            << DTypeName(dtype) << " reduction " << static_cast<int>(reduction) << " rank " << rank;
        return absl::OkStatus();
      });
    }
  }
  ExpectNoHost();
}

TEST_F(GpuGroupSuite, SumsHaveEqualBitsOnAllRanks) {
  std::vector<Tensor> sums(devices_.size());
  OnAll([&](int rank, Group& group) {
    std::vector<float> numbers(kLarge);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = Uneven(rank, i);
    const Tensor mine = There(rank, Tensor::Of<float>({kLarge}, std::move(numbers)));
    sums[rank] = Must(Must(group.AllReduce(mine)).ToHost());
    EXPECT_TRUE(SameBits(Must(group.AllReduce(mine)), sums[rank])) << "again";
    return absl::OkStatus();
  });
  for (const Tensor& sum : sums) EXPECT_TRUE(SameBits(sum, sums[0]));
  const std::vector<float> found = Elements(sums[0]);
  for (size_t i = 0; i < found.size(); ++i) {
    double expected = 0;
    for (int rank = 0; rank < ranks(); ++rank) expected += static_cast<double>(Uneven(rank, i));
    ASSERT_NEAR(found[i], expected, 1e-6 * expected) << i;
  }
  ExpectNoHost();
}

TEST_F(GpuGroupSuite, WhatIsMovedArrivesBitForBit) {
  OnAll([&](int rank, Group& group) {
    const int64_t elements = 20'000 * ranks();
    const Tensor mine = There(rank, Numbers(rank, elements));
    const std::vector<Tensor> all = Must(group.AllGather(mine));
    EXPECT_EQ(static_cast<int>(all.size()), ranks());
    for (int from = 0; from < ranks(); ++from) {
      EXPECT_EQ(all[from].device(), devices_[rank].get());
      EXPECT_TRUE(SameBits(all[from], Numbers(from, elements))) << from;
    }
    for (int root = 0; root < ranks(); ++root) {
      const std::vector<Tensor> gathered = Must(group.Gather(mine, root));
      EXPECT_EQ(gathered.size(), rank == root ? devices_.size() : 0u);
      for (size_t from = 0; from < gathered.size(); ++from)
        EXPECT_TRUE(SameBits(gathered[from], Numbers(static_cast<int>(from), elements))) << from;
      EXPECT_TRUE(SameBits(Must(group.Broadcast(mine, root)), Numbers(root, elements))) << root;
    }
    EXPECT_TRUE(SameBits(Must(group.ReduceScatter(mine)),
                         Must(group.ReduceScatter(Numbers(rank, elements)))));
    return absl::OkStatus();
  });
  ExpectNoHost();
}

// As the parameters that each rank has stepped for all others.
TEST_F(GpuGroupSuite, ParcelsArriveWithoutTheHost) {
  ExpectSums();  // the GPUs are connected
  const auto traffic = [this] {
    const carrier::SharedTraffic shared =
        RuntimeOf(*world_->workers[0]).options().carrier->shared_traffic();
    return shared.copied_out + shared.copied_in + shared.lent + shared.borrowed;
  };
  const uint64_t before = traffic();
  OnAll([&](int rank, Group& group) {
    const std::vector<Tensor> here = {Numbers(rank, kLarge), Numbers(rank, 10), Numbers(rank, 3),
                                      Numbers(rank, 2 * kLarge)};
    std::vector<Tensor> there;
    for (const Tensor& tensor : here) there.push_back(There(rank, tensor));
    const std::vector<Device*> devices(here.size(), devices_[rank].get());
    std::vector<ParcelSource> sources;
    for (int root = 0; root < ranks(); ++root) {
      sources.push_back({root, FormsOf(here), {}, devices});
      if (root == rank) sources.back().tensors = there;
    }
    const auto all = Must(BroadcastParcels(group, sources, {}));
    for (int root = 0; root < ranks(); ++root) {
      const int64_t elements[] = {kLarge, 10, 3, 2 * kLarge};
      for (size_t i = 0; i < here.size(); ++i) {
        EXPECT_EQ(all[root][i].device(), devices_[rank].get());
        EXPECT_TRUE(SameBits(all[root][i], Numbers(root, elements[i]))) << root << " " << i;
      }
    }
    return absl::OkStatus();
  });
  EXPECT_LT(traffic() - before, kLarge * sizeof(float)) << "a large tensor went through the host";
  ExpectNoHost();
}

TEST_F(GpuGroupSuite, SeveralCallsUnderWayKeepTheirOrder) {
  OnAll([&](int rank, Group& group) {
    std::vector<Future<Tensor>> sums;
    for (int i = 0; i < 12; ++i) {
      const int64_t elements = i % 3 == 0 ? 8 : kLarge + i;
      const Tensor here = Numbers(rank, elements);
      sums.push_back(group.AllReduceAsync(i % 4 == 3 ? here : There(rank, here)));
    }
    for (int i = 0; i < 12; ++i) {
      const Tensor sum = Must(sums[i].Wait());
      EXPECT_EQ(sum.NumElements(), i % 3 == 0 ? 8 : kLarge + i);
      EXPECT_EQ(Elements(Must(sum.ToHost()))[1], static_cast<float>(ranks() * ranks() + ranks()));
    }
    return absl::OkStatus();
  });
}

TEST_F(GpuGroupSuite, ATensorOnTheHostSendsTheCallThroughTheHost) {
  OnAll([&](int rank, Group& group) {
    const Tensor here = Numbers(rank, kLarge);
    const Tensor sum = Must(group.AllReduce(rank == 0 ? There(0, here) : here));
    EXPECT_EQ(sum.OnHost(), rank != 0);
    EXPECT_TRUE(SameBits(sum, Must(group.AllReduce(here))));
    return absl::OkStatus();
  });
  ExpectSums();  // the next call is one for the GPUs again
  EXPECT_THAT(Log(), HasSubstr("t1 has its tensor elsewhere"));
}

TEST_F(GpuGroupSuite, DifferentCallsAreNamedOnEveryRank) {
  const auto statuses = OnAll([&](int rank, Group& group) {
    const Tensor mine = There(rank, Numbers(rank, kLarge));
    return rank == 0 ? group.AllReduce(mine).status() : group.AllGather(mine).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Text(status), HasSubstr("all-reduce (sum) of f32[50001]"));
    EXPECT_THAT(Text(status), HasSubstr("all-gather of f32[50001]"));
  }
}

TEST_F(GpuGroupSuite, ARankThatDoesNotMakeTheCallIsNamedAndANewGroupWorks) {
  ExpectSums();
  const auto statuses = OnAll([&](int rank, Group& group) {
    if (rank == ranks() - 1) return absl::OkStatus();
    return group
        .AllReduce(There(rank, Numbers(rank, kLarge)), Reduction::kSum, {absl::Seconds(5), ""})
        .status();
  });
  for (int rank = 0; rank + 1 < ranks(); ++rank) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(Culprit(statuses[rank]), absl::StrCat("t", ranks() - 1));
  }
  groups_ = world_->JoinAll("again");
  ExpectSums();
}

TEST_F(GpuGroupSuite, AGpuThatIsLateIsNamedAtTheDeadline) {
  ExpectSums();
  const Tensor room = RoomOn(1, kLarge);
  HeldGpu held(*devices_[1], 1);
  const auto statuses = OnAll([&](int rank, Group& group) {
    const Tensor mine = rank == 1 ? room : There(rank, Numbers(rank, kLarge));
    return group.AllReduce(mine, Reduction::kSum, {absl::Seconds(5), ""}).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(Text(status), HasSubstr("cuda:1 has other work to do before the all-reduce"));
  }
  EXPECT_EQ(Culprit(statuses[0]), "t1");
}

TEST_F(GpuGroupSuite, ARankThatDiesInACallIsNamedAndHangsNobody) {
  ExpectSums();
  const Tensor room = RoomOn(1, kLarge);
  HeldGpu held(*devices_[1], 1);
  Future<Tensor> dying;
  const auto statuses = OnAll([&](int rank, Group& group) {
    if (rank != 1) return group.AllReduce(There(rank, Numbers(rank, kLarge))).status();
    dying = group.AllReduceAsync(room);
    absl::SleepFor(absl::Milliseconds(500));  // the others wait on their GPUs by now
    Kill(1);
    return absl::OkStatus();
  });
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == 1) continue;
    EXPECT_THAT(statuses[rank].code(),
                AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kAborted));
    EXPECT_EQ(Culprit(statuses[rank]), "t1") << statuses[rank];
  }
  held.Release();
  EXPECT_FALSE(dying.Wait().ok());
}

}  // namespace
}  // namespace psd
