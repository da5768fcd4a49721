// Ranks with inputs of different lengths.

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/ddp/buffered_data_parallel.h"
#include "client/ddp/joinable.h"
#include "client/ddp/uneven_inputs.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "core/base/status.h"
#include "core/runtime/runtime.h"
#include "core/tensor/ops/elementwise.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/zero/zero_world.h"

namespace psd {
namespace {

using ::testing::HasSubstr;
using MaybeContext = absl::StatusOr<std::optional<Context>>;

constexpr int kRanks = 3;

class UnevenTest : public ::testing::Test {
 protected:
  UnevenTest() : ranks_(kRanks, Model({{5}, {4}, {3}, {2}}), Adam{}) {
    for (int rank = 0; rank < kRanks; ++rank)
      ddp_.push_back(
          Must(BufferedDataParallel::Create(ranks_.groups[rank], ranks_.replicas[rank])));
  }
  // Gives that rank `inputs` inputs.
  ComputeGradients Inputs(int rank, int inputs) {
    return [this, rank, inputs, next = 0]() mutable -> MaybeContext {
      if (next == inputs) return std::nullopt;
      const Replica& replica = ranks_.replicas[rank];
      return WithGradients(replica, Gradients(replica, 10 * rank + next++));
    };
  }
  static std::string Text(const absl::Status& status) { return std::string(status.message()); }
  static std::string Culprit(const absl::Status& status) {
    const auto detail = GetDetail(status);
    return detail.has_value() ? detail->worker : "";
  }

  ZeroWorld ranks_;
  std::vector<std::unique_ptr<BufferedDataParallel>> ddp_;
};

TEST_F(UnevenTest, ZERO_43_DDP_32_AllRanksMakeAsManyStepsAsTheLongest) {
  PlainTrainer plain(Model({{5}, {4}, {3}, {2}}), Adam{});
  ranks_.OnAll([&](int rank) {
    const absl::Status done =
        RunUneven(*ranks_.world.workers[rank], {ddp_[rank].get(), ranks_.zero[rank].get()},
                  Inputs(rank, 1 + 2 * rank));
    EXPECT_TRUE(done.ok()) << done;
    EXPECT_EQ(ranks_.zero[rank]->steps(), 5u);
  });
  // Rank r has 1 + 2 r inputs, and counts as one with zeros after them. Each gradient is divided by
  // the number of ranks, and then they are added in the order of the ranks.
  for (int step = 0; step < 5; ++step) {
    std::vector<Tensor> means;
    for (const ReplicatedParameter& parameter : plain.replica->parameters())
      means.push_back(Must(Tensor::Zeros(parameter.shape, DType::kF32)));
    for (int rank = 0; rank < kRanks; ++rank) {
      if (step >= 1 + 2 * rank) continue;
      const std::vector<Tensor> gradients = Gradients(*plain.replica, 10 * rank + step);
      for (size_t i = 0; i < means.size(); ++i)
        means[i] = Must(ops::Add(means[i], Must(ops::Div(gradients[i], kRanks))));
    }
    plain.Step(means);
  }
  for (int rank = 0; rank < kRanks; ++rank)
    ExpectSameElements(ranks_.replicas[rank], *plain.replica);
}

// The number of samples of a rank's input.
double SamplesOf(int rank, int step) {
  return 1 + rank + 3 * step;
}

// The gradients of that input, of a loss that was multiplied by `scale`. Those of one input
// overflow.
std::vector<Tensor> ScaledGradients(const Replica& replica, int rank, int step, double scale) {
  std::vector<Tensor> gradients = Gradients(replica, 10 * rank + step);
  for (Tensor& gradient : gradients) gradient = Must(ops::Mul(gradient, scale));
  if (rank == 2 && step == 2) gradients[1] = Must(Tensor::Full({4}, DType::kF32, INFINITY));
  return gradients;
}

TEST(UnevenOptionsTest, ZERO_43_DDP_27_IterationsClipScaleAndWeighBySamples) {
  constexpr double kNorm = 0.5;
  ZeroOptions scaling;
  scaling.settings.loss_scaling = LossScaling::Dynamic(8);
  ZeroWorld ranks(kRanks, Model({{5}, {4}, {3}, {2}}), Adam{}, scaling);
  PlainTrainer plain(Model({{5}, {4}, {3}, {2}}), Adam{}, scaling.settings);
  ranks.OnAll([&](int rank) {
    const Replica& replica = ranks.replicas[rank];
    ZeroRedundancyOptimizer& zero = *ranks.zero[rank];
    const auto ddp = Must(BufferedDataParallel::Create(ranks.groups[rank], replica));
    int step = 0;
    ddp->IterateWith([&] {
      AllReduceOptions options;
      options.samples = SamplesOf(rank, step - 1);  // also when this rank has run out
      return options;
    });
    zero.IterateWith([&] {
      ZeroStepOptions options;
      options.clip_norm = kNorm;
      options.loss_scale = zero.LossScale();
      return options;
    });
    const absl::Status done =
        RunUneven(*ranks.world.workers[rank], {ddp.get(), &zero}, [&]() -> MaybeContext {
          if (step == 1 + 2 * rank) return std::nullopt;
          return WithGradients(replica, ScaledGradients(replica, rank, step++, zero.LossScale()));
        });
    EXPECT_TRUE(done.ok()) << done;
    EXPECT_EQ(zero.steps(), 4u);
    EXPECT_EQ(zero.LossScale(), 4) << "one of five iterations overflowed";
    zero.IterateWith(nullptr);
  });
  // A rank that has run out counts as zeros and no samples.
  for (int step = 0; step < 5; ++step) {
    StepOptions options;
    options.clip_norm = kNorm;
    options.loss_scale = step < 3 ? 8 : 4;
    double samples = 0;
    std::vector<Tensor> sums;
    for (const ReplicatedParameter& parameter : plain.replica->parameters())
      sums.push_back(Must(Tensor::Zeros(parameter.shape, DType::kF32)));
    for (int rank = 0; rank < kRanks; ++rank) {
      if (step >= 1 + 2 * rank) continue;
      samples += SamplesOf(rank, step);
      const std::vector<Tensor> gradients =
          ScaledGradients(*plain.replica, rank, step, options.loss_scale);
      for (size_t i = 0; i < sums.size(); ++i)
        sums[i] = Must(ops::Add(sums[i], Must(ops::Div(gradients[i], kRanks))));
    }
    for (Tensor& sum : sums) sum = Must(ops::Mul(sum, kRanks / samples));
    plain.Step(sums, options);
  }
  for (int rank = 0; rank < kRanks; ++rank)
    ExpectSameElements(ranks.replicas[rank], *plain.replica);
}

// Fails on one rank, and makes a call on the others.
class FailsOnRank2 : public Joinable {
 public:
  explicit FailsOnRank2(std::shared_ptr<Group> group) : group_(std::move(group)) {}
  Group& group() const override { return *group_; }
  absl::Status Iterate(const Context&, bool) override {
    if (group_->rank() == 2) return absl::ResourceExhaustedError("no memory for an iteration");
    return group_->Barrier();
  }

 private:
  const std::shared_ptr<Group> group_;  // shared with the test
};

TEST_F(UnevenTest, ZERO_46_AJoinableThatFailsOnOneRankIsAnErrorOnAll) {
  ranks_.OnAll([&](int rank) {
    FailsOnRank2 fails(ranks_.groups[rank]);
    const absl::Status done =
        RunUneven(*ranks_.world.workers[rank], {&fails}, Inputs(rank, rank == 1 ? 0 : 2));
    EXPECT_TRUE(absl::IsResourceExhausted(done)) << done;
    EXPECT_THAT(Text(done), HasSubstr("no memory for an iteration"));
    if (rank == 2) return;
    EXPECT_THAT(Text(done), HasSubstr("rank 2 (t2) cannot go on"));
  });
}

TEST_F(UnevenTest, ZERO_45_ZeroAloneIsJoinable) {
  ranks_.OnAll([&](int rank) {
    const absl::Status done = RunUneven(*ranks_.world.workers[rank], {ranks_.zero[rank].get()},
                                        Inputs(rank, rank == 1 ? 0 : 3));
    EXPECT_TRUE(done.ok()) << done;
    EXPECT_EQ(ranks_.zero[rank]->steps(), 3u);
  });
  for (int rank : {1, 2}) ExpectSameElements(ranks_.replicas[rank], ranks_.replicas[0]);
}

TEST_F(UnevenTest, ZERO_44_EveryRankIsToldInTheSameIteration) {
  UnevenOptions early;
  early.stop_early = true;
  ranks_.OnAll([&](int rank) {
    const absl::Status done = RunUneven(*ranks_.world.workers[rank], {ranks_.zero[rank].get()},
                                        Inputs(rank, rank == 1 ? 2 : 4), early);
    EXPECT_TRUE(absl::IsFailedPrecondition(done)) << done;
    EXPECT_THAT(Text(done), HasSubstr("rank 1 (t1) of 3 ranks"));
    EXPECT_EQ(Text(done).find("this one among them") != std::string::npos, rank == 1);
    EXPECT_EQ(ranks_.zero[rank]->steps(), 2u);
  });
  ranks_.Step(1);  // the group goes on
}

TEST_F(UnevenTest, ZERO_46_AnErrorInTheBodyReachesEveryRankAndSkipsTheRest) {
  ranks_.OnAll([&](int rank) {
    int calls = 0;
    const ComputeGradients inputs = Inputs(rank, 4);
    const absl::Status done =
        RunUneven(*ranks_.world.workers[rank], {ranks_.zero[rank].get()}, [&]() -> MaybeContext {
          if (rank == 2 && calls++ == 1) return absl::DataLossError("a torn file");
          return inputs();
        });
    EXPECT_EQ(ranks_.zero[rank]->steps(), 1u);
    if (rank == 2) {
      EXPECT_EQ(done, absl::DataLossError("a torn file"));
    } else {
      EXPECT_THAT(Text(done), HasSubstr("rank 2 (t2) could not compute gradients"));
      EXPECT_EQ(Culprit(done), "t2");
    }
  });
  ranks_.Step(1);
}

TEST_F(UnevenTest, DDP_30_ARankThatDiesIsNamedOnTheOthers) {
  ranks_.OnAll([&](int rank) {
    Worker& worker = *ranks_.world.workers[rank];
    int calls = 0;
    const ComputeGradients inputs = Inputs(rank, 4);
    const absl::Status done =
        RunUneven(worker, {ddp_[rank].get(), ranks_.zero[rank].get()}, [&]() -> MaybeContext {
          if (rank != 2 || calls++ == 0) return inputs();
          RuntimeOf(worker).agent().Shutdown(absl::ZeroDuration());
          return absl::CancelledError("this rank is dead");
        });
    EXPECT_FALSE(done.ok());
    if (rank == 2) return;
    EXPECT_EQ(Culprit(done), "t2") << done;
  });
}

TEST_F(UnevenTest, ZERO_46_NoJoinablesOrThoseOfTwoGroupsAreRefused) {
  Worker& worker = *ranks_.world.workers[0];
  EXPECT_TRUE(absl::IsInvalidArgument(RunUneven(worker, {}, Inputs(0, 1))));
  EXPECT_TRUE(absl::IsInvalidArgument(RunUneven(worker, {nullptr}, Inputs(0, 1))));
  const auto others = ranks_.world.JoinAll("others");
  const auto other = Must(BufferedDataParallel::Create(others[0], ranks_.replicas[0]));
  const absl::Status two = RunUneven(worker, {ddp_[0].get(), other.get()}, Inputs(0, 1));
  EXPECT_THAT(Text(two), HasSubstr("the groups ranks and others"));
}

}  // namespace
}  // namespace psd
