// Gradients that travel while the backward that computes them goes on.

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "client/ddp/buffered_all_reduce.h"
#include "client/ddp/buffered_data_parallel.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/future.h"
#include "core/base/status.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/ddp/replica_world.h"

namespace psd {
namespace {

using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;
using Order = std::vector<size_t>;

constexpr int kRanks = 3;
constexpr absl::Duration kLong = absl::Seconds(60);

// With buffers of 8 elements these travel as {4}, {3}, {1, 2}, {0}.
std::vector<Shape> Shapes() {
  return {{2, 2}, {5}, {3}, {4}, {6}};
}

Order AllOf(size_t count) {
  Order order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

// A loss whose backward completes the gradients of the parameters in `order` from the last to the
// first.
Variable Loss(const std::vector<Variable>& parameters, const Order& order, double factor = 1) {
  Variable loss(Tensor::Scalar<float>(static_cast<float>(factor)));
  for (const size_t i : order) loss = Sum(Mul(loss, Tanh(parameters[i])));
  return loss;
}

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}
std::string Culprit(const absl::Status& status) {
  const auto detail = GetDetail(status);
  return detail.has_value() ? detail->worker : "";
}

// Ranks that average with and without overlap.
class Ranks : public ReplicaWorld {
 public:
  explicit Ranks(bool shared_memory, const std::vector<Shape>& shapes = Shapes(),
                 int64_t buffer_elements = 8)
      : ReplicaWorld(kRanks, Model(shapes), /*memory_budget_bytes=*/0, shared_memory) {
    options.buffer_elements = buffer_elements;
    for (int rank = 0; rank < kRanks; ++rank) {
      options.overlap = false;
      plain.push_back(Must(BufferedDataParallel::Create(groups[rank], replicas[rank], options)));
      options.overlap = true;
      overlapped.push_back(
          Must(BufferedDataParallel::Create(groups[rank], replicas[rank], options)));
    }
  }

  using MakeLoss = std::function<Variable(int rank, const Context& context)>;
  // Computes the means of one loss on every rank, with and without overlap.
  void ExpectSameMeans(const MakeLoss& loss, const AllReduceOptions& averaging = {}) {
    OnAll([&](int rank) {
      Context alone = NewContext(rank), beside = NewContext(rank);
      ASSERT_TRUE(alone.Backward({loss(rank, alone)}).ok());
      ASSERT_TRUE(plain[rank]->AllReduceGradients(alone, averaging).ok());
      const absl::Status done =
          overlapped[rank]->Backward(beside, {loss(rank, beside)}, {}, averaging);
      ASSERT_TRUE(done.ok()) << done;
      ExpectSameGradients(rank, alone, beside);
    });
  }
  void ExpectSameGradients(int rank, const Context& a, const Context& b) const {
    const std::vector<Tensor> of_a = Must(replicas[rank].Gradients(a));
    const std::vector<Tensor> of_b = Must(replicas[rank].Gradients(b));
    for (size_t i = 0; i < of_a.size(); ++i) {
      ASSERT_EQ(of_a[i].defined(), of_b[i].defined()) << i;
      if (!of_a[i].defined()) continue;
      EXPECT_TRUE(SameBits(of_a[i], of_b[i])) << "parameter " << i;
    }
  }
  Context NewContext(int rank) const { return Must(replicas[rank].worker().NewContext()); }
  std::vector<Variable> Variables(int rank, const Context& context) const {
    return Must(replicas[rank].Variables(context));
  }
  // Runs an overlapped backward, in which `hook` is called when it comes to parameter `index`.
  absl::Status BackwardWith(int rank, Context& context, size_t index,
                            const std::function<absl::Status()>& hook) const {
    const std::vector<Variable> parameters = Variables(rank, context);
    const absl::Status added =
        parameters[index].AddGradientHook([&](const Tensor& gradient) -> absl::StatusOr<Tensor> {
          PSD_RETURN_IF_ERROR(hook());
          return gradient;
        });
    EXPECT_TRUE(added.ok()) << added;
    return overlapped[rank]->Backward(context, {Loss(parameters, AllOf(parameters.size()))});
  }

  BufferedOptions options;
  std::vector<std::unique_ptr<BufferedDataParallel>> plain, overlapped;
};

class OverlapTest : public ::testing::TestWithParam<bool> {
 protected:
  OverlapTest() : ranks_(GetParam()) {}

  // One rank fails in its backward, when that comes to parameter `index`.
  void ExpectErrorOnAll(size_t index) {
    ranks_.OnAll([&](int rank) {
      Context context = ranks_.NewContext(rank);
      const absl::Status status = ranks_.BackwardWith(rank, context, index, [rank] {
        return rank == 1 ? absl::DataLossError("a torn gradient") : absl::OkStatus();
      });
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(Text(status), HasSubstr("a torn gradient"));
      if (rank == 1) return;
      EXPECT_THAT(Text(status), HasSubstr("rank 1 (t1) cannot go on"));
      EXPECT_EQ(Culprit(status), "t1");
    });
  }
  // `end` ends rank 1's part when three of its four buffers are on their way.
  void ExpectNamed(const std::function<void()>& end, const std::string& text) {
    ranks_.OnAll([&](int rank) {
      Context context = ranks_.NewContext(rank);
      const absl::Status status = ranks_.BackwardWith(rank, context, 0, [&] {
        if (rank == 1) end();
        return absl::OkStatus();
      });
      EXPECT_FALSE(status.ok());
      if (rank == 1) return;
      EXPECT_EQ(Culprit(status), "t1") << status;
      EXPECT_THAT(Text(status), HasSubstr(text));
    });
  }

  Ranks ranks_;
};

INSTANTIATE_TEST_SUITE_P(Carriers, OverlapTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Shm" : "Grpc"; });

TEST_P(OverlapTest, DDP_29_ZERO_41_ZERO_42_MeansHaveTheSameBitsWhateverTheOrderOfABackward) {
  const std::vector<Order> orders = {AllOf(5), {4, 3, 2, 1, 0}, {2, 0, 4, 1, 3}};
  for (size_t round = 0; round < 3; ++round) {
    AllReduceOptions averaging;
    if (round > 0) averaging.samples = 3.0 * static_cast<double>(round);
    ranks_.ExpectSameMeans(
        [&](int rank, const Context& context) {
          return Loss(ranks_.Variables(rank, context),
                      orders[(static_cast<size_t>(rank) + round) % orders.size()], 1.1 * rank + 1);
        },
        averaging);
  }
}

TEST_P(OverlapTest, DDP_29_ABufferLeavesWhileTheBackwardGoesOn) {
  // The other ranks make the calls themselves. Rank 0 does not come to the end of its backward
  // before rank 1 has the sum of the first buffer.
  const Promise<Unit> has_first;
  ranks_.OnAll([&](int rank) {
    if (rank == 0) {
      Context context = ranks_.NewContext(0);
      const absl::Status done = ranks_.BackwardWith(0, context, 0, [&] {
        EXPECT_TRUE(has_first.future().WaitFor(kLong)) << "the first buffer has not left";
        return absl::OkStatus();
      });
      EXPECT_TRUE(done.ok()) << done;
      return;
    }
    const BufferedAllReduce calls = Must(BufferedAllReduce::Create(
        ranks_.groups[rank], ranks_.replicas[rank].parameters(), ranks_.options));
    const std::vector<Shape> shapes = {{6}, {4}, {8}, {2, 2}};
    ASSERT_EQ(calls.groups().size(), shapes.size());
    for (size_t buffer = 0; buffer < shapes.size(); ++buffer) {
      CollectiveOptions call;
      call.label = calls.LabelOf(buffer);
      const Tensor zeros = Must(Tensor::Zeros(shapes[buffer], DType::kF32));
      const absl::Status summed =
          ranks_.groups[rank]->AllReduce(zeros, Reduction::kSum, call).status();
      ASSERT_TRUE(summed.ok()) << summed;
      if (rank == 1 && buffer == 0) has_first.Set(Unit{});
    }
  });
}

TEST_P(OverlapTest, DDP_29_SmallParametersBetweenLargeOnesHoldUpNone) {
  const Ranks mixed(GetParam(), {{20}, {2}, {20}, {2}, {20}, {2}}, /*buffer_elements=*/8);
  std::vector<Order> buffers;
  for (const BufferGroup& buffer : Must(mixed.overlapped[0]->Buffers()))
    buffers.push_back(buffer.parameters);
  EXPECT_EQ(buffers, (std::vector<Order>{{4}, {2}, {1, 3, 5}, {0}}));
}

TEST_P(OverlapTest, DDP_29_MoreBuffersThanMayTravelAtOnceWaitForTheirTurn) {
  const std::vector<Shape> shapes(20, Shape{2});
  Ranks many(GetParam(), shapes, /*buffer_elements=*/2);
  ASSERT_EQ(Must(many.overlapped[0]->Buffers()).size(), 20u);
  const Promise<Unit> at_the_end;
  many.OnAll([&](int rank) {
    Context alone = many.NewContext(rank), beside = many.NewContext(rank);
    ASSERT_TRUE(alone.Backward({Loss(many.Variables(rank, alone), AllOf(20))}).ok());
    ASSERT_TRUE(many.plain[rank]->AllReduceGradients(alone).ok());
    // The others begin when rank 0 comes to its last parameter.
    if (rank > 0) {
      EXPECT_TRUE(at_the_end.future().WaitFor(kLong));
    }
    const absl::Status done = many.BackwardWith(rank, beside, 0, [&] {
      at_the_end.Set(Unit{});
      return absl::OkStatus();
    });
    ASSERT_TRUE(done.ok()) << done;
    many.ExpectSameGradients(rank, alone, beside);
  });
}

TEST_P(OverlapTest, DDP_09_DDP_29_MissingGradientsAreZerosAndFrozenOnesStayAbsent) {
  ranks_.OnAll([&](int rank) { ASSERT_TRUE(ranks_.replicas[rank].SetFrozen(2, true).ok()); });
  const std::vector<Order> used = {{0, 4}, {1}, {0, 1}};  // and 3 by nobody
  ranks_.ExpectSameMeans([&](int rank, const Context& context) {
    return Loss(ranks_.Variables(rank, context), used[static_cast<size_t>(rank)]);
  });
  ranks_.OnAll([&](int rank) {
    Context context = ranks_.NewContext(rank);
    const std::vector<Variable> parameters = ranks_.Variables(rank, context);
    ASSERT_TRUE(ranks_.overlapped[rank]->Backward(context, {Sum(parameters[1])}).ok());
    const std::vector<Tensor> means = Must(ranks_.replicas[rank].Gradients(context));
    EXPECT_THAT(Elements(means[3]), Each(0));
    EXPECT_FALSE(means[2].defined());
  });
}

TEST_P(OverlapTest, DDP_13_DDP_14_DDP_29_OnlyTheLastOfSeveralMicroBatchesIsAveraged) {
  ranks_.OnAll([&](int rank) {
    Context alone = ranks_.NewContext(rank), beside = ranks_.NewContext(rank);
    BufferedDataParallel& ddp = *ranks_.overlapped[rank];
    const auto loss = [&](const Context& context, double factor) {
      return Loss(ranks_.Variables(rank, context), AllOf(5), factor + rank);
    };
    for (const double factor : {0.1, 0.7, 1.3})
      ASSERT_TRUE(alone.Backward({loss(alone, factor)}).ok());
    ASSERT_TRUE(ranks_.plain[rank]->AllReduceGradients(alone).ok());

    ASSERT_TRUE(beside.Backward({loss(beside, 0.1)}).ok());
    {
      const auto scope = ddp.NoSync();
      ASSERT_TRUE(ddp.Backward(beside, {loss(beside, 0.7)}).ok());
    }
    const absl::Status done = ddp.Backward(beside, {loss(beside, 1.3)});
    ASSERT_TRUE(done.ok()) << done;
    ranks_.ExpectSameGradients(rank, alone, beside);
  });
}

TEST_P(OverlapTest, DDP_29_ParametersThatAreUsedInSeveralWaysAreAveragedAtTheEnd) {
  ranks_.ExpectSameMeans([&](int rank, const Context& context) {
    const std::vector<Variable> once = ranks_.Variables(rank, context);
    const std::vector<Variable> again = ranks_.Variables(rank, context);
    const Replica& replica = ranks_.replicas[rank];
    const Tensor ids = Tensor::Of<int64_t>({3}, {1, rank % 2, 1});
    const Variable rows =
        Must(replica.worker().LookUpRows({{replica.values()[0], ids}}, context))[0];
    return Loss(once, AllOf(5)) + Loss(again, {1, 4}, 0.3) + Sum(Mul(rows, rows));
  });
}

TEST_P(OverlapTest, DDP_29_AGraphThatIsKeptGoesThroughASecondBackward) {
  ranks_.OnAll([&](int rank) {
    Context alone = ranks_.NewContext(rank), beside = ranks_.NewContext(rank);
    dist_autograd::BackwardOptions keep;
    keep.retain_graph = true;
    const Variable of_alone = Loss(ranks_.Variables(rank, alone), AllOf(5), rank + 1);
    const Variable of_beside = Loss(ranks_.Variables(rank, beside), AllOf(5), rank + 1);
    for (int pass = 0; pass < 2; ++pass) {
      ASSERT_TRUE(alone.Backward({of_alone}, keep).ok());
      ASSERT_TRUE(ranks_.plain[rank]->AllReduceGradients(alone).ok());
      ASSERT_TRUE(ranks_.overlapped[rank]->Backward(beside, {of_beside}, keep).ok());
      ranks_.ExpectSameGradients(rank, alone, beside);
    }
  });
}

TEST_P(OverlapTest, DDP_29_RanksMayMixOverlapWithTheTwoCallsThatItReplaces) {
  ranks_.OnAll([&](int rank) {
    Context context = ranks_.NewContext(rank);
    const Variable loss = Sum(ranks_.Variables(rank, context)[3]) * (3.0 * (rank + 1));
    BufferedDataParallel& ddp = *ranks_.overlapped[rank];
    absl::Status done;
    if (rank == 0) done = ddp.Backward(context, {loss});
    if (rank == 1) done = context.Backward({loss});
    if (rank > 0) done.Update(ddp.AllReduceGradients(context));  // rank 2 has no gradients
    ASSERT_TRUE(done.ok()) << done;
    EXPECT_THAT(Elements(Must(ranks_.replicas[rank].Gradients(context))[3]), Each(3));
  });
}

TEST_P(OverlapTest, DDP_30_AnErrorBeforeAnythingHasLeftReachesAllRanks) {
  ExpectErrorOnAll(4);
}

TEST_P(OverlapTest, DDP_30_AnErrorAfterMostBuffersHaveLeftReachesAllRanks) {
  ExpectErrorOnAll(0);
}

TEST_P(OverlapTest, DDP_30_ARankThatDiesInItsBackwardIsNamed) {
  ExpectNamed([&] { RuntimeOf(*ranks_.world.workers[1]).agent().Shutdown(absl::ZeroDuration()); },
              "rank 1 (t1)");
}

TEST_P(OverlapTest, DDP_30_ARankThatLeavesInItsBackwardIsNamed) {
  ExpectNamed([&] { ranks_.groups[1]->Leave(); }, "rank 1 (t1) has left");
}

TEST_P(OverlapTest, ZERO_42_RanksOfWhichSomeSendInAnotherOrderGetAnErrorThatSaysSo) {
  ranks_.OnAll([&](int rank) {
    Context context = ranks_.NewContext(rank);
    const Variable loss = Loss(ranks_.Variables(rank, context), AllOf(5));
    const absl::Status status =
        (rank == 0 ? ranks_.plain : ranks_.overlapped)[rank]->Backward(context, {loss});
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(Text(status), HasSubstr("the ranks differ in call"));
  });
}

TEST_P(OverlapTest, DDP_29_AGradientFromElsewhereIsAnErrorAndIsNotLost) {
  ranks_.OnAll([&](int rank) {
    Context context = ranks_.NewContext(rank);
    const Replica& replica = ranks_.replicas[rank];
    const absl::Status status = ranks_.BackwardWith(rank, context, 0, [&]() -> absl::Status {
      if (rank != 0) return absl::OkStatus();
      std::vector<Tensor> gradients(5);
      gradients[4] = Must(Tensor::Full({6}, DType::kF32, 100));
      return replica.SetGradients(context, gradients);
    });
    // All gradients have left by then, so another rank may learn it from its next call.
    const absl::Status told = status.ok() ? ranks_.groups[rank]->Barrier() : status;
    EXPECT_TRUE(absl::IsFailedPrecondition(told)) << told;
    EXPECT_THAT(Text(told), HasSubstr("'p4' got a gradient from elsewhere"));
    if (rank > 0) return;
    EXPECT_THAT(Elements(Must(replica.Gradients(context))[4]), Each(Gt(50)));
  });
}

TEST_P(OverlapTest, WhatIsWrongIsRefusedBeforeAnythingIsSent) {
  AllReduceOptions negative, long_label;
  negative.samples = -1;
  long_label.call.label = std::string(125, 'x');
  Context context = ranks_.NewContext(0);
  const Variable loss = Loss(ranks_.Variables(0, context), AllOf(5));
  BufferedDataParallel& ddp = *ranks_.overlapped[0];
  EXPECT_TRUE(absl::IsInvalidArgument(ddp.Backward(context, {loss}, {}, negative)));
  EXPECT_TRUE(absl::IsInvalidArgument(ddp.Backward(context, {loss}, {}, long_label)));
  const Context taken = std::move(context);
  EXPECT_TRUE(absl::IsFailedPrecondition(ddp.Backward(context, {loss})));
  for (const auto& group : ranks_.groups) EXPECT_TRUE(group->status().ok());
}

TEST(OverlapAloneTest, DDP_18_AGroupOfOneHasNothingToOverlap) {
  PlainTrainer alone(Model(Shapes()));
  GroupOptions one;
  one.members = {"plain"};
  BufferedOptions options;
  options.overlap = true;
  const auto ddp = Must(BufferedDataParallel::Create(Must(Group::Join(*alone.worker, "solo", one)),
                                                     *alone.replica, options));
  Context context = Must(alone.worker->NewContext());
  const std::vector<Variable> parameters = Must(alone.replica->Variables(context));
  ASSERT_TRUE(ddp->Backward(context, {Sum(parameters[1])}).ok());
  const std::vector<Tensor> means = Must(alone.replica->Gradients(context));
  EXPECT_THAT(Elements(means[1]), Each(1));
  EXPECT_THAT(Elements(means[0]), Each(0));
}

}  // namespace
}  // namespace psd
