// Ranks that die, fail or differ while a sharded optimizer works: the others get an error that
// names them, and go on in a group that is built again.

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/ddp/buffered_data_parallel.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "core/base/status.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/zero/zero_world.h"

namespace psd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 3;
constexpr size_t kOfNan = 2;  // a parameter of three elements

std::vector<Shape> Shapes() {
  return {{7}, {300, 300}, {3}, {64, 3}, {5, 5}, {300, 200}};
}

std::string Culprit(const absl::Status& status) {
  const auto detail = GetDetail(status);
  return detail.has_value() ? detail->worker : "";
}

class ZeroFaultsTest : public ::testing::Test {
 protected:
  ZeroFaultsTest() : ranks_(kRanks, Model(Shapes()), Adam{}) { ranks_.Step(1); }

  // The worker of that rank ends without a word to the group.
  void Kill(int rank) {
    RuntimeOf(*ranks_.world.workers[rank]).agent().Shutdown(absl::ZeroDuration());
  }
  absl::Status StepOf(int rank) {
    const Replica& replica = ranks_.replicas[rank];
    return ranks_.zero[rank]->Step(WithGradients(replica, Gradients(replica, 2)));
  }
  // Runs f on the ranks other than `dead`, which must all fail and name that one.
  void ExpectFailure(int dead, const std::function<absl::Status(int)>& f) {
    ranks_.OnAll([&](int rank) {
      if (rank == dead) return;
      absl::Status status;
      for (int tries = 0; status.ok() && tries < 3; ++tries) status = f(rank);
      EXPECT_FALSE(status.ok());
      EXPECT_EQ(Culprit(status), ranks_.world.workers[dead]->name()) << status;
    });
  }
  // Gradients with a NaN in element 1 of parameter kOfNan.
  static std::vector<Tensor> WithANan(const Replica& replica, double seed) {
    std::vector<Tensor> gradients = Gradients(replica, seed);
    gradients[kOfNan] = Tensor::Of<float>({3}, {0.5f, NAN, -0.5f});
    return gradients;
  }
  // All ranks have a NaN in that element, and none elsewhere.
  void ExpectOneNan() const {
    for (const Replica& replica : ranks_.replicas) {
      const std::vector<Tensor> parameters = Must(replica.Elements());
      for (size_t i = 0; i < parameters.size(); ++i) {
        const std::vector<float> elements = Elements(parameters[i]);
        for (size_t j = 0; j < elements.size(); ++j)
          ASSERT_EQ(std::isnan(elements[j]), i == kOfNan && j == 1) << i << " " << j;
      }
      ExpectSameElements(replica, ranks_.replicas[0]);
    }
  }
  // The survivors build the group again, and go on from a snapshot with the parameters of rank 0.
  void ExpectToGoOn(int dead, const OptimizerSnapshot& snapshot) {
    std::vector<Replica> left;
    ranks_.OnAll([&](int rank) {
      if (rank == dead) return;
      const auto group =
          Must(ranks_.groups[rank]->Rebuild(*ranks_.world.workers[rank], {}, absl::Seconds(60)));
      ASSERT_EQ(group->size(), kRanks - 1);
      Replica& replica = ranks_.replicas[rank];
      const absl::Status equal = replica.Synchronize(*group, 0);
      ASSERT_TRUE(equal.ok()) << equal;
      const auto zero = Must(ZeroRedundancyOptimizer::Create(group, replica, Adam{}));
      ASSERT_TRUE(zero->Load(snapshot).ok());
      ASSERT_TRUE(zero->Step(WithGradients(replica, Gradients(replica, 3))).ok());
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank != dead) left.push_back(ranks_.replicas[rank]);
    }
    ExpectSameElements(left[0], left[1], "on the survivors");
  }

  ZeroWorld ranks_;
};

TEST_F(ZeroFaultsTest, DDP_30_ARankThatDiedBeforeAStepIsNamedAndTheOthersGoOn) {
  const OptimizerSnapshot saved = ranks_.Gathered(0);
  Kill(1);
  ExpectFailure(1, [&](int rank) { return StepOf(rank); });
  ExpectToGoOn(1, saved);
}

TEST_F(ZeroFaultsTest, DDP_30_ARankThatDiesInConsolidationIsNamedOnEveryRank) {
  const OptimizerSnapshot saved = ranks_.Gathered(0);
  ranks_.OnAll([&](int rank) {
    if (rank == 2) return Kill(2);
    absl::Status status;
    for (int tries = 0; status.ok() && tries < 2; ++tries)
      status = ranks_.zero[rank]->Consolidate(0);
    EXPECT_EQ(Culprit(status), "t2") << status;
  });
  ExpectToGoOn(2, saved);
}

// Rank 1 is late in the middle of its state, when rank 2 has waited longer than rank 0.
TEST(ZeroConsolidationTest, DDP_30_ARankThatIsLateWithItsStateIsNamedOnEveryRank) {
  constexpr absl::Duration kTimeout = absl::Seconds(10);
  ZeroOptions options;
  options.call.timeout = kTimeout;
  ZeroWorld ranks(kRanks, Model(Shapes()), Adam{}, options);
  ranks.Step(1);
  ranks.OnAll([&](int rank) {
    if (rank != 1) {
      const absl::Status status = ranks.zero[rank]->Consolidate(0);
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_EQ(Culprit(status), "t1") << status;
      return;
    }
    Group& group = *ranks.groups[1];
    CollectiveOptions call;
    for (const char* label : {"zero, state to rank 0", "zero, state of rank 0"}) {
      call.label = label;
      ASSERT_TRUE(group.Barrier(call).ok());
    }
    absl::SleepFor(kTimeout / 4);
    call.label = "zero, state of rank 1";
    int64_t own = 0;
    for (size_t i = 0; i < Shapes().size(); ++i) own += ranks.zero[1]->RankOf(i) == 1 ? 1 : 0;
    ASSERT_TRUE(group.Send(Must(Tensor::Zeros({own}, DType::kI64)), 0, call).ok());
  });
}

// Rank 2 is stopped while rank 0 takes a while for the state of rank 1. The time of that counts for
// rank 1, which then waits for rank 2.
TEST(ZeroConsolidationTest, DDP_30_ARankThatIsStoppedIsNamedTwoTimeoutsAfterTheStateBeganToMove) {
  ZeroOptions options;
  options.call.timeout = absl::Seconds(6);
  ZeroWorld ranks(kRanks, Model({{4}, {4}, {4}}), Adam{}, options);
  ranks.Step(1);
  ranks.OnAll([&](int rank) {
    absl::Status status;
    if (rank == 1) {
      status = ranks.zero[1]->Consolidate(0);
      EXPECT_THAT(std::string(status.message()), Not(HasSubstr("waited 12s")));
    } else {
      Group& group = *ranks.groups[rank];
      CollectiveOptions call;
      for (const char* label : {"zero, state to rank 0", "zero, state of rank 0"}) {
        call.label = label;
        ASSERT_TRUE(group.Barrier(call).ok());
      }
      if (rank == 2) return;
      absl::SleepFor(absl::Milliseconds(50));
      call.label = "zero, state of rank 1";
      for (const char* what : {"steps", "arrays"}) ASSERT_TRUE(group.Receive(1, call).ok()) << what;
      status = group.Barrier(call);
    }
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_EQ(Culprit(status), "t2") << status;
  });
}

TEST_F(ZeroFaultsTest, ZERO_17_ARankThatCannotStepTellsTheOthersWhy) {
  ranks_.OnAll([&](int rank) {
    const Replica& replica = ranks_.replicas[rank];
    Context context = WithGradients(replica, Gradients(replica, 2));
    if (rank == 1) {
      // Its gradients are gone.
      RuntimeOf(*ranks_.world.workers[1]).autograd().Release(context.id());
    }
    const absl::Status status = ranks_.zero[rank]->Step(context);
    EXPECT_FALSE(status.ok());
    if (rank != 1) {
      EXPECT_EQ(Culprit(status), "t1") << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 (t1) cannot go on"));
    }
  });
}

TEST_F(ZeroFaultsTest, ACallThatIsWrongOnOneRankDoesNotCount) {
  ranks_.OnAll([&](int rank) {
    if (rank == 1) {
      Context moved = WithGradients(ranks_.replicas[1], Gradients(ranks_.replicas[1], 2));
      const Context other = std::move(moved);
      EXPECT_TRUE(absl::IsFailedPrecondition(ranks_.zero[1]->Step(moved)));
      ZeroStepOptions negative;
      negative.clip_norm = -1;
      EXPECT_TRUE(absl::IsInvalidArgument(ranks_.zero[1]->Step(other, negative)));
    }
    const absl::Status status = StepOf(rank);
    EXPECT_TRUE(status.ok()) << status;
  });
  ExpectSameElements(ranks_.replicas[0], ranks_.replicas[1]);
}

TEST_F(ZeroFaultsTest, ZERO_17_RanksThatMakeOtherCallsGetAnErrorThatSaysSo) {
  ranks_.OnAll([&](int rank) {
    const absl::Status status = rank == 2 ? StepOf(2) : ranks_.zero[rank]->Consolidate(rank);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the ranks differ in call"));
  });
}

TEST_F(ZeroFaultsTest, ANanInOneRanksGradientIsSharedByAll) {
  const int owner = ranks_.zero[0]->RankOf(kOfNan);
  ranks_.Step([&](int rank) {
    return rank == owner ? WithANan(ranks_.replicas[rank], 2) : Gradients(ranks_.replicas[rank], 2);
  });
  ExpectOneNan();
}

// Step takes a parameter's gradient from the rank that has the parameter, and from no other.
TEST_F(ZeroFaultsTest, ZERO_08_ANanOnARankThatDoesNotHaveTheParameterHasNoEffect) {
  const int owner = ranks_.zero[0]->RankOf(kOfNan);
  PlainTrainer plain(Model(Shapes()), Adam{});
  plain.Step(Gradients(*plain.replica, 1));
  ZeroStepOptions clipped;
  clipped.clip_norm = 1;
  StepOptions the_same;
  the_same.clip_norm = 1;
  for (const bool clip : {false, true}) {
    ranks_.Step(
        [&](int rank) {
          return rank == owner ? Gradients(ranks_.replicas[rank], 2)
                               : WithANan(ranks_.replicas[rank], 2);
        },
        clip ? clipped : ZeroStepOptions());
    plain.Step(Gradients(*plain.replica, 2), clip ? the_same : StepOptions());
    for (const Replica& replica : ranks_.replicas)
      ExpectSameElements(replica, *plain.replica, clip ? "with a norm to clip by" : "");
  }
}

TEST_F(ZeroFaultsTest, ANanInOneRanksGradientComesThroughTheMeansToAll) {
  const int owner = ranks_.zero[0]->RankOf(kOfNan);
  ranks_.OnAll([&](int rank) {
    const Replica& replica = ranks_.replicas[rank];
    const auto ddp = Must(BufferedDataParallel::Create(ranks_.groups[rank], replica));
    const Context context = WithGradients(
        replica, rank == (owner + 1) % kRanks ? WithANan(replica, 2) : Gradients(replica, rank));
    ASSERT_TRUE(ddp->AllReduceGradients(context).ok());
    const absl::Status stepped = ranks_.zero[rank]->Step(context);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
  ExpectOneNan();
}

TEST_F(ZeroFaultsTest, ANanInOneRanksGradientReachesAllAndAClippedStepIsRefused) {
  std::vector<std::vector<Tensor>> before;
  for (const Replica& replica : ranks_.replicas) before.push_back(Must(replica.Elements()));
  ranks_.OnAll([&](int rank) {
    const Replica& replica = ranks_.replicas[rank];
    const auto ddp = Must(BufferedDataParallel::Create(ranks_.groups[rank], replica));
    std::vector<Tensor> gradients = Gradients(replica, rank);
    if (rank == 1) gradients[2] = Must(Tensor::Full({3}, DType::kF32, NAN));
    const Context context = WithGradients(replica, gradients);
    ASSERT_TRUE(ddp->AllReduceGradients(context).ok());
    const std::vector<Tensor> means = Must(replica.Gradients(context));
    EXPECT_THAT(Elements(means[2]), ::testing::Each(::testing::IsNan()));
    EXPECT_THAT(Elements(means[0]), Not(::testing::Contains(::testing::IsNan())));
    ZeroStepOptions clipped;
    clipped.clip_norm = 1;
    const absl::Status refused = ranks_.zero[rank]->Step(context, clipped);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    const std::vector<Tensor> now = Must(replica.Elements());
    for (size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(SameBits(now[i], before[rank][i])) << i;
    const absl::Status stepped = StepOf(rank);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
  for (int rank : {1, 2}) ExpectSameElements(ranks_.replicas[rank], ranks_.replicas[0]);
}

class ZeroMemoryTest : public ::testing::Test {
 protected:
  ZeroMemoryTest() : ranks_(kRanks, Model(Shapes()), Adam{}, {}, {}, size_t{64} << 20) {}
  ZeroWorld ranks_;
};

TEST_F(ZeroMemoryTest, AStepThatOneRankCannotFinishFailsOnAll) {
  const std::vector<MemoryCharge> taken = TakeAllMemory(*ranks_.world.workers[1]);
  ranks_.OnAll([&](int rank) {
    const Replica& replica = ranks_.replicas[rank];
    const absl::Status status =
        ranks_.zero[rank]->Step(WithGradients(replica, Gradients(replica, 2)));
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    if (rank == 1) return;
    EXPECT_EQ(Culprit(status), "t1") << status;
  });
}

TEST_F(ZeroMemoryTest, ParametersThatOneRankCannotTakeAreAnErrorOnAll) {
  const std::vector<MemoryCharge> taken = TakeAllMemory(*ranks_.world.workers[2]);
  ranks_.OnAll([&](int rank) {
    const absl::Status status = ranks_.replicas[rank].Synchronize(*ranks_.groups[rank], 0);
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    if (rank == 2) return;
    EXPECT_EQ(Culprit(status), "t2") << status;
  });
}

TEST_F(ZeroMemoryTest, ALoadNeedsNoMemoryForValues) {
  ranks_.Step(1);
  const OptimizerSnapshot saved = ranks_.Gathered(0);
  std::vector<std::vector<MemoryCharge>> taken;
  for (const auto& worker : ranks_.world.workers) taken.push_back(TakeAllMemory(*worker));
  for (const auto& zero : ranks_.zero) {
    const absl::Status loaded = zero->Load(saved);
    EXPECT_TRUE(loaded.ok()) << loaded;
  }
}

}  // namespace
}  // namespace psd
