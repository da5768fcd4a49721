// A trainer's own parameters: versions, gradients of contexts, freezing, and making ranks equal.

#include <string>
#include <vector>

#include "client/ddp/replica.h"
#include "client/psd.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/ddp/replica_world.h"

namespace psd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

TEST(ReplicaTest, GradientsOfBackwardAreInTheContextAndNotInTheReplica) {
  const PlainTrainer plain(Model({{2}, {3}}));
  const Replica& replica = *plain.replica;
  Context context = Must(plain.worker->NewContext());
  const std::vector<Variable> variables = Must(replica.Variables(context));
  ASSERT_TRUE(context.Backward({Sum(Mul(variables[0], variables[0]))}).ok());
  ASSERT_TRUE(context.Backward({Sum(variables[0])}).ok()) << "gradients add up";
  const std::vector<Tensor> gradients = Must(replica.Gradients(context));
  const std::vector<float> x = Elements(variables[0].tensor());
  EXPECT_THAT(Elements(gradients[0]), ElementsAre(2 * x[0] + 1, 2 * x[1] + 1));
  EXPECT_FALSE(gradients[1].defined());
  const Context next = Must(plain.worker->NewContext());
  EXPECT_FALSE(Must(replica.Gradients(next))[0].defined());
}

TEST(ReplicaTest, DDP_25_ParametersKeepTheirNamesWhichEndWithTheReplica) {
  PlainTrainer plain(Model({{2}}));
  EXPECT_EQ(plain.replica->name(0), "p0");
  EXPECT_EQ(Must(plain.worker->List("plain")).size(), 1u);
  const absl::Status again = Replica::Create(*plain.worker, Model({{2}})).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists) << again;
  EXPECT_THAT(Text(again), HasSubstr("'p0'"));
  const absl::Status partly =
      Replica::Create(*plain.worker, {Model({{1}, {1}})[1], Model({{1}})[0]}).status();
  EXPECT_FALSE(partly.ok());
  EXPECT_EQ(Must(plain.worker->List("plain")).size(), 1u) << "p1 is gone again";
  plain.replica.reset();
  EXPECT_TRUE(Must(plain.worker->List("plain")).empty());
  EXPECT_TRUE(Replica::Create(*plain.worker, Model({{2}})).ok());
}

TEST(ReplicaTest, WhatIsWrongIsRefused) {
  PlainTrainer plain(Model({{2}, {3}}));
  Replica& replica = *plain.replica;
  ReplicaParameter integer{"n", Tensor::Of<int64_t>({1}, {1})};
  EXPECT_TRUE(absl::IsInvalidArgument(Replica::Create(*plain.worker, {integer}).status()));
  EXPECT_THAT(Text(replica.Assign({{0, Wavy({2}, 1)}, {1, Wavy({2}, 1)}})),
              HasSubstr("'p1', f32[3], cannot take"));
  ExpectSameElements(replica, *PlainTrainer(Model({{2}, {3}})).replica, "nothing has changed");
  EXPECT_TRUE(absl::IsInvalidArgument(replica.Assign({{2, Wavy({2}, 1)}})));
  EXPECT_TRUE(absl::IsInvalidArgument(replica.SetFrozen(2, true)));
  Context context = Must(plain.worker->NewContext());
  EXPECT_TRUE(absl::IsInvalidArgument(replica.SetGradients(context, {Tensor()})));
  EXPECT_THAT(Text(replica.SetGradients(context, {Tensor(), Wavy({2}, 1)})), HasSubstr("'p1'"));
  const Context taken = std::move(context);
  EXPECT_TRUE(absl::IsFailedPrecondition(replica.Gradients(context).status()));
}

TEST(ReplicaTest, AFrozenParameterIsAConstantUntilItIsThawed) {
  PlainTrainer plain(Model({{2}, {3}}));
  Replica& replica = *plain.replica;
  ASSERT_TRUE(replica.SetFrozen(0, true).ok());
  Context context = Must(plain.worker->NewContext());
  EXPECT_FALSE(Must(replica.Variables(context))[0].requires_grad());
  EXPECT_FALSE(replica.parameters()[0].requires_grad);
  ASSERT_TRUE(replica.SetFrozen(0, false).ok());
  EXPECT_TRUE(Must(replica.Variables(context))[0].requires_grad());
}

TEST(ReplicaTest, DDP_22_ReplicasThatBeganDifferentlyStaySoUntilTheyAreSynchronized) {
  // Small parameters, which travel together, one that travels alone, and one without elements.
  const std::vector<Shape> shapes = {{3}, {300, 300}, {0}, {}, {100, 100}};
  ReplicaWorld world(3, {});
  std::vector<Replica> replicas;
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<ReplicaParameter> parameters = Model(shapes);
    for (size_t i = 0; i < shapes.size(); ++i)
      parameters[i].elements = Wavy(shapes[i], 100.0 * rank + static_cast<double>(i));
    replicas.push_back(Must(Replica::Create(*world.world.workers[rank], parameters)));
  }
  EXPECT_FALSE(SameBits(Must(replicas[0].Elements())[0], Must(replicas[1].Elements())[0]));
  world.OnAll([&](int rank) {
    const absl::Status done = replicas[rank].Synchronize(*world.groups[rank], 1);
    EXPECT_TRUE(done.ok()) << done;
  });
  EXPECT_TRUE(SameBits(Must(replicas[1].Elements())[1], Wavy(shapes[1], 101)));
  for (int rank : {0, 2}) ExpectSameElements(replicas[rank], replicas[1]);
}

TEST(ReplicaTest, DDP_28_ExpertsStayDifferentWhenReplicasAreSynchronized) {
  ReplicaWorld world(2, {});
  std::vector<Replica> replicas;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<ReplicaParameter> parameters = Model({{3}, {3}, {3}});
    for (ReplicaParameter& each : parameters) each.elements = Wavy({3}, 100.0 * rank);
    parameters[1].expert = true;
    replicas.push_back(Must(Replica::Create(*world.world.workers[rank], parameters)));
  }
  world.OnAll([&](int rank) {
    const absl::Status done = replicas[rank].Synchronize(*world.groups[rank], 0);
    EXPECT_TRUE(done.ok()) << done;
  });
  const std::vector<Tensor> elements = Must(replicas[1].Elements());
  EXPECT_TRUE(SameBits(elements[0], Wavy({3}, 0)));
  EXPECT_TRUE(SameBits(elements[1], Wavy({3}, 100)));
  EXPECT_TRUE(SameBits(elements[2], Wavy({3}, 0)));
}

TEST(ReplicaTest, ZERO_17_ReplicasOfOtherParametersAreNotSynchronized) {
  ReplicaWorld world(2, {});
  world.OnAll([&](int rank) {
    std::vector<ReplicaParameter> parameters = Model({{3}, {3}});
    if (rank == 1) std::swap(parameters[0], parameters[1]);
    Replica replica = Must(Replica::Create(*world.world.workers[rank], parameters));
    const absl::Status status = replica.Synchronize(*world.groups[rank], 0);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(Text(status), HasSubstr("the ranks differ"));
  });
}

}  // namespace
}  // namespace psd
