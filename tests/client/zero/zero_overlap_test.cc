// Steps of sharded optimizers whose gradients are averaged while the backward goes on.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/ddp/buffered_data_parallel.h"
#include "client/psd.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/zero/zero_world.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;

std::vector<Shape> Shapes() {
  return {{7}, {64, 3}, {5, 5}, {13}, {2, 2}};
}

Variable Loss(const std::vector<Variable>& parameters, double factor) {
  Variable loss(Tensor::Scalar<float>(static_cast<float>(factor)));
  for (const Variable& parameter : parameters) loss = Sum(Mul(loss, Tanh(parameter)));
  return loss;
}

// Ranks with a sharded optimizer that averages gradients.
class Ranks : public ReplicaWorld {
 public:
  explicit Ranks(bool overlap, const std::vector<ZeroGroup>& some = {{{0, 1, 2, 3, 4}, {}}})
      : ReplicaWorld(kRanks, Model(Shapes())), ddp(kRanks), zero(kRanks) {
    OnAll([&](int rank) {
      BufferedOptions buffers;
      buffers.buffer_elements = 30;
      buffers.overlap = overlap;
      ddp[rank] = Must(BufferedDataParallel::Create(groups[rank], replicas[rank], buffers));
      ZeroOptions options;
      options.averaging = ddp[rank].get();
      zero[rank] = Must(
          ZeroRedundancyOptimizer::Create(groups[rank], replicas[rank], Adam{}, some, options));
    });
  }
  auto LossOf(int rank, int step) {
    return [this, rank, step](const Context& context) -> absl::StatusOr<Variable> {
      PSD_ASSIGN_OR_RETURN(const std::vector<Variable> parameters,
                           replicas[rank].Variables(context));
      return Loss(parameters, 0.3 * rank + step + 1);
    };
  }

  std::vector<std::unique_ptr<BufferedDataParallel>> ddp;
  std::vector<std::unique_ptr<ZeroRedundancyOptimizer>> zero;
};

TEST(ZeroOverlapTest, ZERO_39_ZERO_40_StepsEqualThoseWithoutOverlapFromTheFirstOn) {
  Ranks plain(false), overlapped(true);
  const std::vector<Tensor> before = Must(overlapped.replicas[0].Elements());
  for (int step = 0; step < 4; ++step) {
    ZeroStepOptions options;
    if (step > 1) options.clip_norm = 0.01;
    for (Ranks* ranks : {&plain, &overlapped}) {
      ranks->OnAll(
          [&](int rank) { Must(ranks->zero[rank]->Step(ranks->LossOf(rank, step), options)); });
    }
    for (const Replica& replica : overlapped.replicas)
      ExpectSameElements(replica, plain.replicas[0], absl::StrCat("after step ", step));
    const std::vector<Tensor> after = Must(overlapped.replicas[0].Elements());
    for (size_t i = 0; i < before.size(); ++i) EXPECT_FALSE(SameBits(before[i], after[i])) << i;
  }
}

TEST(ZeroOverlapTest, ZERO_34_ExplicitStepsFurtherGroupsAndEarlyStatesWorkAsWithoutOverlap) {
  const std::vector<ZeroGroup> first = {{{0, 1, 2}, {}}};
  const ZeroGroup second = {{3, 4}, {{"lr", 0.05}}};
  Ranks plain(false, first), overlapped(true, first);
  for (Ranks* ranks : {&plain, &overlapped}) {
    ranks->OnAll([&](int rank) {
      ZeroRedundancyOptimizer& zero = *ranks->zero[rank];
      ASSERT_TRUE(zero.Consolidate(0).ok()) << "before the first step";
      if (rank == 0) {
        EXPECT_EQ(Must(zero.State()).steps, 0u);
      }
      ASSERT_TRUE(zero.AddGroup(second).ok());
      const Replica& replica = ranks->replicas[rank];
      Context context = Must(replica.worker().NewContext());
      const Variable loss = Must(ranks->LossOf(rank, 1)(context));
      ASSERT_TRUE(ranks->ddp[rank]->Backward(context, {loss}).ok());
      ASSERT_TRUE(zero.Step(context).ok());
      Must(zero.Step(ranks->LossOf(rank, 2)));
    });
  }
  for (const Replica& replica : overlapped.replicas) ExpectSameElements(replica, plain.replicas[0]);
}

TEST(ZeroOverlapTest, ZERO_17_AnErrorInOneRanksBackwardEndsTheStepOnAll) {
  Ranks ranks(true);
  ranks.OnAll([&](int rank) {
    const absl::Status status = ranks.zero[rank]
                                    ->Step([&](const Context& context) -> absl::StatusOr<Variable> {
                                      PSD_ASSIGN_OR_RETURN(const std::vector<Variable> parameters,
                                                           ranks.replicas[rank].Variables(context));
                                      if (rank == 2) {
                                        PSD_RETURN_IF_ERROR(parameters[1].AddGradientHook(
                                            [](const Tensor&) -> absl::StatusOr<Tensor> {
                                              return absl::DataLossError("a torn gradient");
                                            }));
                                      }
                                      return Loss(parameters, 1);
                                    })
                                    .status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_EQ(ranks.zero[rank]->steps(), 0u);
    if (rank == 2) return;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 (t2) cannot go on"));
  });
}

TEST(ZeroOverlapTest, ZERO_14_AveragesOfAnotherReplicaAreRefused) {
  Ranks ranks(true);
  std::vector<ReplicaParameter> others = Model({{3}});
  others[0].name = "other";
  const Replica other = Must(Replica::Create(*ranks.world.workers[0], others));
  ZeroOptions options;
  options.averaging = ranks.ddp[0].get();
  const absl::Status status =
      ZeroRedundancyOptimizer::Create(ranks.groups[0], other, Adam{}, options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another group or replica"));
}

}  // namespace
}  // namespace psd
