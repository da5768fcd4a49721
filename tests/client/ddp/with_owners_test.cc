// Replicas beside owners: the dense part of a model is averaged among the trainers, its embedding
// rows live on an owner, and one context has the gradients of both.

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "client/ddp/buffered_data_parallel.h"
#include "client/psd.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/ddp/replica_world.h"

namespace psd {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;

constexpr int kRanks = 2;
constexpr int kSteps = 3;

// The sum over the elements of tanh(rows) · dense + dense² / 2.
Variable Loss(const Variable& rows, const Variable& dense) {
  return Sum(Mul(Tanh(rows), dense)) + Sum(Mul(dense, dense)) * 0.5;
}

Tensor Ids(int rank, int step) {
  return Tensor::Of<int64_t>({3}, {rank, (rank + step) % 4, 3});
}

RRef Table(Worker& worker, const std::string& owner) {
  CreateOptions options;
  options.requires_grad = true;
  options.rows = true;
  return Must(worker.GetOrCreate(owner, "table", Zeros({4, 2}), options));
}

TEST(WithOwnersTest, DDP_32_DenseGradientsAreAveragedAndRowsGoToTheirOwner) {
  const std::vector<ReplicaParameter> model = Model({{3, 2}});
  ReplicaWorld world(kRanks, model);
  Must(world.world.workers[0]->Assign(Table(*world.world.workers[0], "owner0"), Wavy({4, 2}, 3)));
  Sgd sgd;
  sgd.lr = 0.1;
  world.OnAll([&](int rank) {
    Worker& worker = *world.world.workers[rank];
    const Replica& replica = world.replicas[rank];
    const RRef table = Table(worker, "owner0");
    const auto ddp = Must(BufferedDataParallel::Create(world.groups[rank], replica));
    const auto zero = Must(ZeroRedundancyOptimizer::Create(world.groups[rank], replica, sgd));
    const auto rows = Must(DistributedOptimizer::Create(worker, sgd, {table}));
    for (int step = 0; step < kSteps; ++step) {
      Context context = Must(worker.NewContext());
      const std::vector<Variable> dense = Must(replica.Variables(context));
      const std::vector<Variable> found =
          Must(worker.LookUpRows({{table, Ids(rank, step)}}, context));
      ASSERT_TRUE(context.Backward({Loss(found[0], dense[0])}).ok());
      ASSERT_TRUE(ddp->AllReduceGradients(context).ok());  // all ranks have looked up by now
      ASSERT_TRUE(zero->Step(context).ok());
      ASSERT_TRUE(rows->Step(context).ok());
      ASSERT_TRUE(world.groups[rank]->Barrier().ok());  // all rows are stepped before the next
    }
  });
  ExpectSameElements(world.replicas[0], world.replicas[1]);

  // The same model in one place: the mean of the dense gradients, the sum of those of the rows.
  Tensor table = Wavy({4, 2}, 3), dense = model[0].elements;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> next_table = Elements(table), next_dense = Elements(dense);
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::vector<float> w = Elements(dense), all = Elements(table);
      const std::vector<int64_t> ids = Elements<int64_t>(Ids(rank, step));
      for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 2; ++j) {
          const float x = std::tanh(all[ids[i] * 2 + j]);
          next_dense[i * 2 + j] -= 0.1f * (x + w[i * 2 + j]) / kRanks;
          next_table[ids[i] * 2 + j] -= 0.1f * (1 - x * x) * w[i * 2 + j];
        }
      }
    }
    table = Tensor::Of({4, 2}, next_table);
    dense = Tensor::Of({3, 2}, next_dense);
  }
  EXPECT_THAT(Elements(Must(world.replicas[0].Elements())[0]),
              Pointwise(FloatNear(1e-5), Elements(dense)));
  Worker& worker = *world.world.workers[0];
  const std::vector<Variable> rows =
      Must(worker.LookUpRows({{Table(worker, "owner0"), Tensor::Of<int64_t>({4}, {0, 1, 2, 3})}}));
  EXPECT_THAT(Elements(rows[0].tensor()), Pointwise(FloatNear(1e-5), Elements(table)));
}

TEST(WithOwnersTest, DDP_32_SparseGradientsOfReplicasAreAveraged) {
  ReplicaWorld world(kRanks, Model({{4, 2}}));
  world.OnAll([&](int rank) {
    const Replica& replica = world.replicas[rank];
    const auto ddp = Must(BufferedDataParallel::Create(world.groups[rank], replica));
    Context context = Must(replica.worker().NewContext());
    const std::vector<Variable> parameters = Must(replica.Variables(context));
    const Variable rows = Embedding(parameters[0], Tensor::Of<int64_t>({2}, {rank, 3}));
    ASSERT_TRUE(context.Backward({Sum(rows)}).ok());
    ASSERT_TRUE(ddp->AllReduceGradients(context).ok());
    EXPECT_THAT(Elements(Must(replica.Gradients(context))[0]),
                ::testing::ElementsAre(0.5, 0.5, 0.5, 0.5, 0, 0, 1, 1));
  });
}

TEST(WithOwnersTest, DDP_18_SparseGradientsOfMicroBatchesAreSummedAsTheContextSumsThem) {
  // 2^24 + 1 + 1 in f32 depends on the order.
  PlainTrainer alone(Model({{2, 1}}));
  const Replica& replica = *alone.replica;
  GroupOptions one;
  one.members = {"plain"};
  const auto ddp =
      Must(BufferedDataParallel::Create(Must(Group::Join(*alone.worker, "solo", one)), replica));
  Context context = Must(alone.worker->NewContext());
  const auto add = [&](const std::vector<float>& factors) {
    const Variable table = Must(replica.Variables(context))[0];
    const auto count = static_cast<int64_t>(factors.size());
    const Variable rows =
        Embedding(table, Tensor::Of<int64_t>({count}, std::vector<int64_t>(factors.size(), 1)));
    ASSERT_TRUE(context.Backward({Sum(Mul(rows, Variable(Tensor::Of({count, 1}, factors))))}).ok());
  };
  add({0x1p24f});
  add({1, 1});
  const Tensor expected = Must(context.Gradient(replica.values()[0]));
  EXPECT_TRUE(SameBits(Must(replica.Gradients(context))[0], expected));
  ASSERT_TRUE(ddp->AllReduceGradients(context).ok());
  EXPECT_TRUE(SameBits(Must(replica.Gradients(context))[0], expected));
}

}  // namespace
}  // namespace psd
