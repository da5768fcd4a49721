// The operations of a group, over shared memory, over the network, over both, and over a simulated
// network that loses, repeats and reorders messages and breaks links; with small and large tensors.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/collectives/group.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/carrier/faulty/fault_plan.h"
#include "core/carrier/faulty/faulty_network.h"
#include "core/rpc/rpc_agent.h"
#include "core/rpc/session_options.h"
#include "core/runtime/runtime.h"
#include "core/tensor/ops/cast.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/collectives/other_host.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSmall = 7;
constexpr int64_t kLarge = 50'001;    // parts that are no whole lines
constexpr int64_t kUntold = 300'001;  // too many for a notice
constexpr int64_t kPieces = 600'001;  // two pieces for each of two ranks

// The input of a rank: numbers of very different sizes, whose sum depends on the order.
Tensor Input(int rank, int64_t elements, int round = 0) {
  std::vector<float> numbers(static_cast<size_t>(elements));
  for (int64_t i = 0; i < elements; ++i) {
    numbers[i] = std::ldexp(1.0f + 0.37f * static_cast<float>((i * 31 + rank * 17 + round) % 29),
                            static_cast<int>((i * 7 + rank * 11) % 40) - 20);
  }
  return Tensor::Of<float>({elements}, std::move(numbers));
}

Tensor SumInOrder(int ranks, int64_t elements, int round = 0) {
  std::vector<float> sum = Elements(Input(0, elements, round));
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> next = Elements(Input(rank, elements, round));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += next[i];
  }
  return Tensor::Of<float>({elements}, std::move(sum));
}

struct Setting {
  int ranks = 0;
  bool shared_memory = false;
  uint64_t faulty_seed = 0;  // of the simulated network; 0: the network is real
  int on_other_host = 0;     // so many of the last ranks share no memory with any other
};

// Null if the network is real.
std::shared_ptr<carrier::FaultyNetwork> NetworkOf(const Setting& setting) {
  if (setting.faulty_seed == 0) return nullptr;
  carrier::FaultyNetworkOptions options;
  options.seed = setting.faulty_seed;
  auto network = carrier::FaultyNetwork::Create(options);
  network->StartThread();
  return network;
}

// The sessions of a network whose links break all the time.
rpc::SessionOptions Restless() {
  rpc::SessionOptions session;
  session.reconnect_min = absl::Milliseconds(1);
  session.reconnect_max = absl::Milliseconds(10);
  return session;
}

class OperationsTest : public ::testing::TestWithParam<Setting> {
 protected:
  OperationsTest()
      : ranks_(GetParam().ranks),
        network_(NetworkOf(GetParam())),
        world_(network_ == nullptr
                   ? GroupWorld(ranks_ - GetParam().on_other_host, GetParam().shared_memory)
                   : GroupWorld(ranks_, network_, Restless())) {
    for (int rank = 0; rank < GetParam().on_other_host; ++rank) AddOnOtherHost(world_);
    groups_ = world_.JoinAll("ranks");
    if (network_ == nullptr) return;
    carrier::Faults faults;
    faults.cut = 0.02;
    faults.duplicate = 0.05;
    faults.reorder = 0.1;
    faults.max_delay = absl::Milliseconds(1);
    network_->SetFaults("*", "*", faults);
  }
  ~OperationsTest() override {
    if (network_ != nullptr) network_->SetFaults("*", "*", {});
  }

  // Runs f on all ranks at the same time.
  void OnAll(const std::function<void(int rank, Group& group)>& f) {
    InParallel(ranks_, [&](int rank) { f(rank, *groups_[rank]); });
  }

  const int ranks_;
  const std::shared_ptr<carrier::FaultyNetwork> network_;  // null: real; shared with the world
  GroupWorld world_;
  std::vector<std::shared_ptr<Group>> groups_;
};

INSTANTIATE_TEST_SUITE_P(All, OperationsTest,
                         ::testing::Values(Setting{2, true}, Setting{3, true}, Setting{4, true},
                                           Setting{3, false}, Setting{2, false, 1},
                                           Setting{3, false, 2}, Setting{4, false, 3},
                                           Setting{4, true, 0, 1}, Setting{4, true, 0, 2}),
                         [](const auto& info) {
                           const uint64_t seed = info.param.faulty_seed;
                           const int other = info.param.on_other_host;
                           return absl::StrCat(info.param.ranks, "Ranks",
                                               seed > 0    ? absl::StrCat("Faulty", seed)
                                               : other > 0 ? absl::StrCat(other, "OnOtherHost")
                                               : info.param.shared_memory ? "Shm"
                                                                          : "Grpc");
                         });

TEST_P(OperationsTest, RanksAreConnectedAsTheSettingSays) {
  int others = 0;
  for (const rpc::PeerStatus& peer : RuntimeOf(*world_.workers[0]).agent().Peers()) {
    if (peer.peer.name[0] != 't') continue;  // the registrar
    ++others;
    const int rank = peer.peer.name[1] - '0';
    const bool near = rank < ranks_ - GetParam().on_other_host;
    EXPECT_EQ(peer.shares_memory(), GetParam().shared_memory && near) << peer.link;
  }
  EXPECT_EQ(others, ranks_ - 1) << "rank 0 is connected to all others";
}

TEST_P(OperationsTest, DDP_31_AnAllReduceSumsInTheOrderOfRanksOnEveryRank) {
  for (const int64_t elements : {int64_t{0}, int64_t{1}, kSmall, kLarge, kPieces}) {
    const Tensor expected = SumInOrder(ranks_, elements);
    OnAll([&](int rank, Group& group) {
      const Tensor sum = Must(group.AllReduce(Input(rank, elements)));
      EXPECT_TRUE(SameBits(sum, expected)) << elements << " on rank " << rank;
    });
  }
}

TEST_P(OperationsTest, DDP_31_OneBucketAndManyHaveTheSameBits) {
  const Tensor whole = SumInOrder(ranks_, kLarge);
  OnAll([&](int rank, Group& group) {
    const std::vector<float> numbers = Elements(Input(rank, kLarge));
    const std::vector<float> expected = Elements(whole);
    std::vector<Future<Tensor>> sums;
    std::vector<int64_t> starts;
    for (int64_t start = 0, size = 1; start < kLarge; start += size, size = size * 5 + 3) {
      const int64_t end = std::min(start + size, kLarge);
      starts.push_back(start);
      sums.push_back(group.AllReduceAsync(
          Tensor::Of<float>({end - start}, {numbers.data() + start, numbers.data() + end})));
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      const std::vector<float> sum = Elements(Must(sums[i].Wait()));
      for (size_t j = 0; j < sum.size(); ++j)
        ASSERT_EQ(sum[j], expected[static_cast<size_t>(starts[i]) + j]);
    }
  });
}

TEST_P(OperationsTest, MeanMinAndMax) {
  OnAll([&](int rank, Group& group) {
    for (const int64_t elements : {int64_t{4}, kLarge}) {
      const Tensor mine = Must(Tensor::Full({elements}, DType::kF32, rank % 2 == 0 ? rank : -rank));
      float sum = 0, least = 0, most = 0;
      for (int r = 0; r < ranks_; ++r) {
        const float x = static_cast<float>(r % 2 == 0 ? r : -r);
        sum += x;
        least = std::min(least, x);
        most = std::max(most, x);
      }
      EXPECT_EQ(Elements(Must(group.AllReduce(mine, Reduction::kMean))).back(),
                sum / static_cast<float>(ranks_));
      EXPECT_EQ(Elements(Must(group.AllReduce(mine, Reduction::kMin))).back(), least);
      EXPECT_EQ(Elements(Must(group.AllReduce(mine, Reduction::kMax))).back(), most);
    }
  });
}

TEST_P(OperationsTest, EveryDTypeThatIsReduced) {
  OnAll([&](int rank, Group& group) {
    for (const DType dtype :
         {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI32, DType::kI64}) {
      const Tensor mine = Must(Tensor::Full({5}, dtype, rank + 1));
      const Tensor sum = Must(group.AllReduce(mine));
      EXPECT_EQ(sum.dtype(), dtype);
      const Tensor expected = Must(Tensor::Full({5}, dtype, ranks_ * (ranks_ + 1) / 2));
      EXPECT_TRUE(SameBits(sum, expected)) << DTypeName(dtype);
    }
  });
}

TEST_P(OperationsTest, DDP_31_HalvesAreSummedInF32AndRoundedOnce) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    // `large` + 1 is halfway between two numbers of the dtype, and is rounded to `large`. So sums
    // that are rounded after each addition stay at `large`, and those in f32 do not.
    const float large = dtype == DType::kF16 ? 2048 : 256;
    OnAll([&](int rank, Group& group) {
      const auto of = [&](float number) {
        return Must(ops::Cast(Must(Tensor::Full({9}, DType::kF32, number)), dtype));
      };
      const Tensor sum = Must(group.AllReduce(of(rank == 0 ? large : 1)));
      const float more[] = {0, 2, 4};  // 1, 2 and 3, rounded once, to the even neighbour
      EXPECT_TRUE(SameBits(sum, of(large + more[ranks_ - 2]))) << DTypeName(dtype);
    });
  }
  OnAll([&](int /*rank*/, Group& group) {
    // The sum of two such numbers is infinite in f16, the mean is not.
    const Tensor mine = Must(ops::Cast(Must(Tensor::Full({9}, DType::kF32, 60000)), DType::kF16));
    EXPECT_TRUE(SameBits(Must(group.AllReduce(mine, Reduction::kMean)), mine));
  });
}

TEST_P(OperationsTest, ReduceScatterGivesEachRankItsBlock) {
  for (const int64_t rows : {int64_t{2}, int64_t{100'000}}) {
    const int64_t elements = rows * ranks_ * 3;
    const std::vector<float> sum = Elements(SumInOrder(ranks_, elements));
    OnAll([&](int rank, Group& group) {
      const Tensor mine = Tensor::Of<float>({rows * ranks_, 3}, Elements(Input(rank, elements)));
      const Tensor block = Must(group.ReduceScatter(mine));
      EXPECT_EQ(block.shape(), Shape({rows, 3}));
      const std::vector<float> got = Elements(block);
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], sum[static_cast<size_t>(rank) * got.size() + i]);
    });
  }
}

TEST_P(OperationsTest, AllGatherAndGatherGiveAllTensorsByRank) {
  for (const int64_t elements : {int64_t{0}, kSmall, kLarge, kUntold}) {
    OnAll([&](int rank, Group& group) {
      const std::vector<Tensor> all = Must(group.AllGather(Input(rank, elements)));
      ASSERT_EQ(all.size(), static_cast<size_t>(ranks_));
      for (int r = 0; r < ranks_; ++r) EXPECT_TRUE(SameBits(all[r], Input(r, elements)));
      const int root = ranks_ - 1;
      const std::vector<Tensor> gathered = Must(group.Gather(Input(rank, elements), root));
      ASSERT_EQ(gathered.size(), rank == root ? static_cast<size_t>(ranks_) : 0u);
      for (size_t r = 0; r < gathered.size(); ++r)
        EXPECT_TRUE(SameBits(gathered[r], Input(static_cast<int>(r), elements)));
    });
  }
}

TEST_P(OperationsTest, BroadcastAndScatterFromEveryRoot) {
  for (const int64_t elements : {kSmall, kLarge, kUntold}) {
    for (int root = 0; root < ranks_; ++root) {
      OnAll([&](int rank, Group& group) {
        EXPECT_TRUE(
            SameBits(Must(group.Broadcast(Input(rank, elements), root)), Input(root, elements)));
        // One rank says what it expects, the others take what comes.
        const Tensor expected = rank == root || rank == 0 ? Input(rank, elements) : Tensor();
        EXPECT_TRUE(SameBits(Must(group.Broadcast(expected, root)), Input(root, elements)));
        std::vector<Tensor> parts;
        for (int r = 0; r < ranks_ && rank == root; ++r) parts.push_back(Input(r, elements, 5));
        EXPECT_TRUE(SameBits(Must(group.Scatter(parts, root)), Input(rank, elements, 5)));
      });
    }
  }
}

TEST_P(OperationsTest, ABarrierWaitsForAllRanks) {
  std::atomic<int> come{0};
  OnAll([&](int /*rank*/, Group& group) {
    for (int round = 1; round <= 20; ++round) {
      ++come;
      EXPECT_TRUE(group.Barrier().ok());
      EXPECT_GE(come, round * ranks_);
      EXPECT_TRUE(group.Barrier().ok());
    }
  });
}

TEST_P(OperationsTest, ManyCallsUnderWayComeBackInTheirPlaces) {
  constexpr int kCalls = 60;  // more than are begun at once
  OnAll([&](int rank, Group& group) {
    std::vector<Future<Tensor>> sums;
    for (int round = 0; round < kCalls; ++round)
      sums.push_back(group.AllReduceAsync(Input(rank, round % 3 == 0 ? 20'000 : kSmall, round)));
    for (int round = 0; round < kCalls; ++round) {
      const Tensor expected = SumInOrder(ranks_, round % 3 == 0 ? 20'000 : kSmall, round);
      EXPECT_TRUE(SameBits(Must(sums[round].Wait()), expected)) << round;
    }
  });
}

TEST_P(OperationsTest, EveryOperationCanBeUnderWayWithOthers) {
  const int64_t elements = 3 * ranks_;
  OnAll([&](int rank, Group& group) {
    const Tensor mine = Input(rank, elements);
    const int root = ranks_ - 1;
    std::vector<Tensor> parts;
    for (int r = 0; r < ranks_ && rank == root; ++r) parts.push_back(Input(r, kLarge, 5));
    const Future<Tensor> block = group.ReduceScatterAsync(mine);
    const Future<std::vector<Tensor>> all = group.AllGatherAsync(Input(rank, kLarge));
    const Future<std::vector<Tensor>> gathered = group.GatherAsync(mine, root);
    const Future<Tensor> sent = group.BroadcastAsync(Input(rank, kLarge), root);
    const Future<Tensor> part = group.ScatterAsync(parts, root);
    const Future<Unit> met = group.BarrierAsync();
    const Future<Tensor> sum = group.AllReduceAsync(mine);
    // They are waited for in another order.
    const Tensor whole = SumInOrder(ranks_, elements);
    EXPECT_TRUE(SameBits(Must(sum.Wait()), whole));
    EXPECT_TRUE(met.Wait().ok());
    EXPECT_TRUE(SameBits(Must(part.Wait()), Input(rank, kLarge, 5)));
    EXPECT_TRUE(SameBits(Must(sent.Wait()), Input(root, kLarge)));
    const std::vector<Tensor> on_root = Must(gathered.Wait());
    ASSERT_EQ(on_root.size(), rank == root ? static_cast<size_t>(ranks_) : 0u);
    for (size_t r = 0; r < on_root.size(); ++r)
      EXPECT_TRUE(SameBits(on_root[r], Input(static_cast<int>(r), elements)));
    const std::vector<Tensor> everywhere = Must(all.Wait());
    ASSERT_EQ(everywhere.size(), static_cast<size_t>(ranks_));
    for (int r = 0; r < ranks_; ++r) EXPECT_TRUE(SameBits(everywhere[r], Input(r, kLarge)));
    const std::vector<float> expected = Elements(whole);
    EXPECT_EQ(Elements(Must(block.Wait())),
              std::vector<float>(expected.begin() + 3 * rank, expected.begin() + 3 * (rank + 1)));
  });
}

TEST_P(OperationsTest, SendsAndReceivesMeetInOrder) {
  OnAll([&](int rank, Group& group) {
    const int next = (rank + 1) % ranks_, before = (rank + ranks_ - 1) % ranks_;
    std::vector<Future<Unit>> sent;
    for (const int64_t elements : {kSmall, int64_t{0}, kLarge}) {
      CollectiveOptions options;
      options.label = absl::StrCat(elements, " elements");
      sent.push_back(group.SendAsync(Input(rank, elements), next, options));
    }
    // The sends are no calls of the whole group.
    EXPECT_TRUE(group.Barrier().ok());
    for (const int64_t elements : {kSmall, int64_t{0}, kLarge}) {
      CollectiveOptions options;
      options.label = absl::StrCat(elements, " elements");
      EXPECT_TRUE(SameBits(Must(group.Receive(before, options)), Input(before, elements)));
    }
    for (const Future<Unit>& each : sent) EXPECT_TRUE(each.Wait().ok());
    // The receive may come first, too.
    const Future<Tensor> early = group.ReceiveAsync(next);
    EXPECT_TRUE(group.Send(Tensor::Of<int64_t>({2, 1}, {rank, 5}), before).ok());
    EXPECT_TRUE(SameBits(Must(early.Wait()), Tensor::Of<int64_t>({2, 1}, {next, 5})));
  });
}

TEST_P(OperationsTest, TensorsThatAreNotContiguousAreReducedToo) {
  OnAll([&](int rank, Group& group) {
    const Tensor one = Must(Tensor::Full({}, DType::kF32, rank + 1));
    const Tensor sum = Must(group.AllReduce(one.Repeated({3, 2})));
    EXPECT_EQ(Elements(sum), std::vector<float>(6, static_cast<float>(ranks_ * (ranks_ + 1) / 2)));
  });
}

TEST_P(OperationsTest, WhatOneRankDoesWrongDoesNotCount) {
  OnAll([&](int rank, Group& group) {
    if (rank == 0) {
      EXPECT_EQ(group.AllReduce(Tensor()).status().code(), absl::StatusCode::kInvalidArgument);
      const absl::Status root = group.Broadcast(Input(0, 3), ranks_).status();
      EXPECT_EQ(root.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(root.message()), HasSubstr(absl::StrCat("0 to ", ranks_ - 1)));
      EXPECT_EQ(group.Broadcast(Tensor(), 0).status().code(), absl::StatusCode::kInvalidArgument);
      for (absl::Duration timeout : {absl::Seconds(-1), absl::InfiniteDuration()}) {
        CollectiveOptions wrong;
        wrong.timeout = timeout;
        for (const absl::Status& status : {group.Barrier(wrong), group.Send(Input(0, 3), 1, wrong),
                                           group.Receive(1, wrong).status()}) {
          EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
          EXPECT_THAT(std::string(status.message()),
                      HasSubstr(absl::StrCat("is ", absl::FormatDuration(timeout))));
        }
      }
      EXPECT_EQ(group.Send(Input(0, 3), 0).code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(group.Send(Tensor(), 1).code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(group.Receive(ranks_).status().code(), absl::StatusCode::kInvalidArgument);
    }
    EXPECT_TRUE(SameBits(Must(group.AllReduce(Input(rank, kSmall))), SumInOrder(ranks_, kSmall)));
  });
}

TEST_P(OperationsTest, TwoGroupsOverTheSameRanksAtOnce) {
  const std::vector<std::shared_ptr<Group>> others = world_.JoinAll("others");
  OnAll([&](int rank, Group& group) {
    for (int round = 0; round < 5; ++round) {
      // The two groups are used in another order on each rank.
      Group& first = rank % 2 == 0 ? group : *others[rank];
      Group& second = rank % 2 == 0 ? *others[rank] : group;
      const Future<Tensor> a = first.AllReduceAsync(Input(rank, &first == &group ? 5 : 20'000));
      const Future<Tensor> b = second.AllReduceAsync(Input(rank, &second == &group ? 5 : 20'000));
      const Tensor mine = Must((rank % 2 == 0 ? a : b).Wait());
      const Tensor theirs = Must((rank % 2 == 0 ? b : a).Wait());
      EXPECT_TRUE(SameBits(mine, SumInOrder(ranks_, 5)));
      EXPECT_TRUE(SameBits(theirs, SumInOrder(ranks_, 20'000)));
    }
  });
}

}  // namespace
}  // namespace psd
