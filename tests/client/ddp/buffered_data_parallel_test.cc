// Averages of the gradients that contexts have collected.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/ddp/buffered_all_reduce.h"
#include "client/ddp/buffered_data_parallel.h"
#include "client/psd.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/ddp/replica_world.h"

namespace psd {
namespace {

using ::testing::Each;
using ::testing::FloatEq;
using ::testing::HasSubstr;

constexpr int kRanks = 2;

Tensor Filled(const Shape& shape, double value) {
  return Must(Tensor::Full(shape, DType::kF32, value));
}

class DataParallelTest : public ::testing::Test {
 protected:
  explicit DataParallelTest(const std::vector<ReplicaParameter>& parameters = Model({{2, 2}, {5}}))
      : world_(kRanks, parameters) {
    BufferedOptions options;
    options.buffer_elements = 8;
    for (int rank = 0; rank < kRanks; ++rank) {
      ddp_.push_back(
          Must(BufferedDataParallel::Create(world_.groups[rank], world_.replicas[rank], options)));
    }
  }
  // Every rank has a context with these gradients, and averages it.
  std::vector<std::vector<Tensor>> Average(
      const std::function<std::vector<Tensor>(int)>& gradients,
      const std::function<AllReduceOptions(int)>& options = [](int) {
        return AllReduceOptions();
      }) {
    std::vector<std::vector<Tensor>> means(kRanks);
    world_.OnAll([&](int rank) {
      const Context context = WithGradients(world_.replicas[rank], gradients(rank));
      const absl::Status done = ddp_[rank]->AllReduceGradients(context, options(rank));
      EXPECT_TRUE(done.ok()) << done;
      means[rank] = Must(world_.replicas[rank].Gradients(context));
    });
    return means;
  }

  ReplicaWorld world_;
  std::vector<std::unique_ptr<BufferedDataParallel>> ddp_;
};

TEST_F(DataParallelTest, DDP_01_DDP_17_ContextsHaveTheMeansAndKeepThemWhenAveragedAgain) {
  world_.OnAll([&](int rank) {
    const Replica& replica = world_.replicas[rank];
    const Context context =
        WithGradients(replica, {Filled({2, 2}, rank + 1), Filled({5}, 10 * rank)});
    for (int round = 0; round < 2; ++round) {
      ASSERT_TRUE(ddp_[rank]->AllReduceGradients(context).ok());
      const std::vector<Tensor> means = Must(replica.Gradients(context));
      EXPECT_THAT(Elements(means[0]), Each(1.5));
      EXPECT_THAT(Elements(means[1]), Each(5));
      EXPECT_THAT(Elements(Must(context.Gradient(replica.values()[0]))), Each(1.5))
          << "what everybody sees";
    }
  });
}

TEST_F(DataParallelTest, DDP_02_DDP_06_BuffersCountAllElementsAndOnlyUsedOnesTravel) {
  const std::vector<BufferGroup> buffers = Must(ddp_[0]->Buffers());
  ASSERT_EQ(buffers.size(), 2u) << "8 elements hold one of 4 and 5";
  EXPECT_EQ(buffers[0].elements, 4);
  EXPECT_EQ(buffers[1].elements, 5);
  const auto large = Must(BufferedDataParallel::Create(world_.groups[0], world_.replicas[0]));
  const std::vector<BufferGroup> all = Must(large->Buffers());
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].elements, 9);
}

TEST_F(DataParallelTest, DDP_09_DDP_11_AMissingGradientIsZerosAndExistsAfterwards) {
  const auto means = Average([](int rank) {
    return std::vector<Tensor>{rank == 0 ? Filled({2, 2}, 4) : Tensor(), Tensor()};
  });
  for (const std::vector<Tensor>& of_rank : means) {
    EXPECT_THAT(Elements(of_rank[0]), Each(2));
    EXPECT_THAT(Elements(of_rank[1]), Each(0));
  }
}

TEST_F(DataParallelTest, DDP_13_DDP_14_DDP_15_NoSyncScopesNest) {
  world_.OnAll([&](int rank) {
    const Replica& replica = world_.replicas[rank];
    Context context = Must(replica.worker().NewContext());
    const auto add = [&] {
      const std::vector<Variable> parameters = Must(replica.Variables(context));
      const Variable factor(Tensor::Scalar<float>(static_cast<float>(rank + 1)));
      ASSERT_TRUE(context.Backward({Sum(Mul(parameters[1], factor))}).ok());
      ASSERT_TRUE(ddp_[rank]->AllReduceGradients(context).ok());
    };
    {
      const auto outer = ddp_[rank]->NoSync();
      add();
      EXPECT_THAT(Elements(Must(replica.Gradients(context))[1]), Each(rank + 1));
      {
        const auto inner = ddp_[rank]->NoSync();
        add();
      }
      add();
      EXPECT_THAT(Elements(Must(replica.Gradients(context))[1]), Each(3 * (rank + 1)))
          << "the inner scope did not end the outer one";
    }
    add();
    EXPECT_THAT(Elements(Must(replica.Gradients(context))[1]), Each(6)) << "(4 + 8) / 2";
  });
}

TEST_F(DataParallelTest, DDP_16_AnErrorInANoSyncScopeLeavesNothingOff) {
  const auto fails = [&](int rank) -> absl::Status {
    auto scope = ddp_[rank]->NoSync();
    const auto moved = std::move(scope);
    return absl::InternalError("in the middle");
  };
  const auto means = Average([&](int rank) {
    EXPECT_FALSE(fails(rank).ok());
    return std::vector<Tensor>{Filled({2, 2}, 2.0 * rank), Tensor()};
  });
  for (const auto& of_rank : means) EXPECT_THAT(Elements(of_rank[0]), Each(1));
}

TEST_F(DataParallelTest, DDP_26_DDP_27_SamplesMakeAMeanOverAllSamples) {
  // Rank 0 has the sum over 3 samples, rank 1 that over 1.
  const auto means = Average(
      [](int rank) {
        return std::vector<Tensor>{Filled({2, 2}, rank == 0 ? 6 : 2), Tensor()};
      },
      [](int rank) {
        AllReduceOptions options;
        options.samples = rank == 0 ? 3 : 1;
        return options;
      });
  for (const auto& of_rank : means) EXPECT_THAT(Elements(of_rank[0]), Each(FloatEq(2)));
  const auto none = Average(
      [](int) {
        return std::vector<Tensor>{Filled({2, 2}, 3), Tensor()};
      },
      [](int) {
        AllReduceOptions options;
        options.samples = 0;
        return options;
      });
  for (const auto& of_rank : none) EXPECT_THAT(Elements(of_rank[0]), Each(FloatEq(6)));
}

TEST_F(DataParallelTest, DDP_08_AFrozenParameterKeepsWhatItHasAndIsNotSent) {
  world_.OnAll([&](int rank) { ASSERT_TRUE(world_.replicas[rank].SetFrozen(0, true).ok()); });
  auto means = Average([](int rank) {
    return std::vector<Tensor>{Tensor(), Filled({5}, 2.0 * rank)};
  });
  for (const auto& of_rank : means) {
    EXPECT_FALSE(of_rank[0].defined());
    EXPECT_THAT(Elements(of_rank[1]), Each(1));
  }
  EXPECT_EQ(Must(ddp_[0]->Buffers()).size(), 1u);
  world_.OnAll([&](int rank) { ASSERT_TRUE(world_.replicas[rank].SetFrozen(0, false).ok()); });
  means = Average([](int rank) {
    return std::vector<Tensor>{Filled({2, 2}, 2.0 * rank), Tensor()};
  });
  for (const auto& of_rank : means) EXPECT_THAT(Elements(of_rank[0]), Each(1));
}

TEST_F(DataParallelTest, WhatIsWrongIsRefusedBeforeAnythingIsSent) {
  AllReduceOptions negative, long_label;
  negative.samples = -1;
  long_label.call.label = std::string(125, 'x');
  Context context = WithGradients(world_.replicas[0], {Filled({2, 2}, 1), Filled({5}, 1)});
  EXPECT_TRUE(absl::IsInvalidArgument(ddp_[0]->AllReduceGradients(context, negative)));
  EXPECT_TRUE(absl::IsInvalidArgument(ddp_[0]->AllReduceGradients(context, long_label)));
  const Context taken = std::move(context);
  EXPECT_TRUE(absl::IsFailedPrecondition(ddp_[0]->AllReduceGradients(context)));
  for (const auto& group : world_.groups) EXPECT_TRUE(group->status().ok());
}

TEST_F(DataParallelTest, ABackwardWhileGradientsAreAveragedIsAnErrorAndLosesNothing) {
  // There are two buffers. Rank 1 makes the calls itself, and so knows that rank 0 has collected
  // its gradients and waits for the second one.
  const Replica& replica = world_.replicas[0];
  Context context = WithGradients(replica, {Filled({2, 2}, 1), Filled({5}, 1)});
  BufferedOptions options;
  options.buffer_elements = 8;
  const BufferedAllReduce averaging =
      Must(BufferedAllReduce::Create(world_.groups[1], world_.replicas[1].parameters(), options));
  const auto reduce = [&](size_t buffer, const Shape& shape) {
    CollectiveOptions call;
    call.label = averaging.LabelOf(buffer);
    return world_.groups[1]->AllReduce(Filled(shape, 0), Reduction::kSum, call).status();
  };
  world_.OnAll([&](int rank) {
    if (rank == 0) {
      const absl::Status status = ddp_[0]->AllReduceGradients(context);
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("added gradients meanwhile"));
      return;
    }
    ASSERT_TRUE(reduce(0, {2, 2}).ok());
    const std::vector<Variable> parameters = Must(replica.Variables(context));
    ASSERT_TRUE(context.Backward({Sum(parameters[1])}).ok());
    reduce(1, {5}).IgnoreError();
  });
  const std::vector<Tensor> gradients = Must(replica.Gradients(context));
  EXPECT_THAT(Elements(gradients[0]), Each(1)) << "not averaged";
  EXPECT_THAT(Elements(gradients[1]), Each(2)) << "both backwards count";
  // The other rank has means, and must not go on with them.
  const absl::Status told = world_.groups[1]->Barrier();
  EXPECT_THAT(std::string(told.message()), HasSubstr("rank 0 (t0) cannot go on"));
}

class EqualShapesTest : public DataParallelTest {
 protected:
  EqualShapesTest() : DataParallelTest(Model({{4}, {4}})) {}
};

TEST_F(EqualShapesTest, ZERO_17_RanksThatFreezeDifferentParametersGetAnErrorThatSaysSo) {
  world_.OnAll([&](int rank) {
    Replica& replica = world_.replicas[rank];
    ASSERT_TRUE(replica.SetFrozen(static_cast<size_t>(rank), true).ok());
    std::vector<Tensor> gradients(2);
    gradients[static_cast<size_t>(1 - rank)] = Filled({4}, 1);
    const Context context = WithGradients(replica, gradients);
    const absl::Status status = ddp_[rank]->AllReduceGradients(context);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the ranks differ"));
    EXPECT_THAT(Elements(Must(replica.Gradients(context))[static_cast<size_t>(1 - rank)]), Each(1));
  });
}

class ExpertsTest : public DataParallelTest {
 protected:
  ExpertsTest() : DataParallelTest(WithAnExpert()) {}
  static std::vector<ReplicaParameter> WithAnExpert() {
    std::vector<ReplicaParameter> parameters = Model({{2, 2}, {5}});
    parameters[1].expert = true;
    return parameters;
  }
};

TEST_F(ExpertsTest, DDP_28_AnExpertKeepsItsOwnGradientOrZeros) {
  const auto means = Average([](int rank) {
    return std::vector<Tensor>{Filled({2, 2}, rank), rank == 0 ? Filled({5}, 7) : Tensor()};
  });
  EXPECT_THAT(Elements(means[0][1]), Each(7));
  EXPECT_THAT(Elements(means[1][1]), Each(0));
  EXPECT_THAT(Elements(means[1][0]), Each(0.5));
}

TEST(ManySmallParametersTest, DDP_10_OneAllReduceForEachBuffer) {
  constexpr int kParameters = 1000, kElements = 256;
  const std::vector<ReplicaParameter> model =
      Model(std::vector<Shape>(kParameters, Shape{kElements}));
  struct Case {
    int64_t parameters_per_buffer;
    int calls;
  };
  for (const Case& c : {Case{2 * kParameters, 1}, Case{250, 4}, Case{249, 5}}) {
    SCOPED_TRACE(c.calls);
    const ReplicaWorld world(kRanks, model);
    BufferedOptions options;
    options.buffer_elements = c.parameters_per_buffer * kElements;
    world.OnAll([&](int rank) {
      const Replica& replica = world.replicas[rank];
      const auto ddp = Must(BufferedDataParallel::Create(world.groups[rank], replica, options));
      // Rank 1 has a gradient of every other parameter only.
      std::vector<Tensor> gradients(kParameters);
      for (size_t i = 0; i < gradients.size(); i += rank + 1) gradients[i] = Filled({kElements}, 2);
      const Context context = WithGradients(replica, gradients);
      {
        const auto no_sync = ddp->NoSync();
        ASSERT_TRUE(ddp->AllReduceGradients(context).ok());
      }
      ASSERT_TRUE(ddp->AllReduceGradients(context).ok());
      const std::vector<Tensor> means = Must(replica.Gradients(context));
      EXPECT_THAT(Elements(means[kParameters - 2]), Each(2));
      EXPECT_THAT(Elements(means[kParameters - 1]), Each(1));
    });
    EXPECT_EQ(CountCalls(world), c.calls);
  }
}

}  // namespace
}  // namespace psd
