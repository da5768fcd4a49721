// Trainers of two hosts: each host adds up its gradients, and one of its trainers pushes for all.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/collectives/group.h"
#include "client/ddp/hierarchical_push.h"
#include "client/ddp/uneven_inputs.h"
#include "client/psd.h"
#include "core/autograd/sparse_leaf.h"
#include "core/base/status.h"
#include "core/tensor/ops/elementwise.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/ddp/hierarchical_world.h"
#include "tests/client/ddp/replica_world.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

Sgd WithMomentum() {
  Sgd sgd;
  sgd.lr = 0.5;
  sgd.momentum = 0.9;
  return sgd;
}

Tensor Plus(const Tensor& a, const Tensor& b) {
  return Must(ops::Add(a, b));
}

TEST_F(HierarchicalPushTest, DDP_32_AStepHasTheBitsOfSumsInGroups) {
  constexpr int kTrainers = 4, kSteps = 3;
  Start(kTrainers);
  const std::vector<Shape> shapes{{5}, {100, 100}};
  const auto gradient = [&](int step, int trainer, int p) {
    return Wavy(shapes[p], 100 * step + 10 * trainer + p);
  };
  std::vector<ReplicaParameter> model = Model(shapes);
  model[0].elements = Wavy(shapes[0], 1);
  model[1].elements = Wavy(shapes[1], 2);
  InParallel(kTrainers, [&](int i) {
    Handles handles = Make(i, kTrainers, {"b", "w"}, WithMomentum(), UpdateMode::Reduction::kMean);
    for (int step = 0; step < kSteps; ++step) {
      // In the last step nobody has a gradient for "b", and only one trainer has one for "w".
      const bool last = step == kSteps - 1;
      const Context context = WithGradients(i, *handles.push,
                                            {last ? Tensor() : gradient(step, i, 0),
                                             last && i != 1 ? Tensor() : gradient(step, i, 1)});
      const absl::Status stepped = handles.push->Step(context);
      ASSERT_TRUE(stepped.ok()) << stepped;
    }
  });
  PlainTrainer plain(model, WithMomentum());
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Tensor> means;
    for (int p = 0; p < 2; ++p) {
      std::vector<Tensor> each;
      for (int i = 0; i < kTrainers; ++i) each.push_back(gradient(step, i, p));
      means.push_back(Must(ops::Mul(Plus(Plus(each[0], each[1]), Plus(each[2], each[3])), 0.25)));
    }
    if (step == kSteps - 1) means = {Tensor(), Must(ops::Mul(gradient(step, 1, 1), 0.25))};
    plain.Step(means);
  }
  const std::vector<Tensor> expected = Must(plain.replica->Elements());
  const std::vector<PulledParameter> pulled = Must(worker(0).Pull(Parameters(0, {"b", "w"})));
  EXPECT_TRUE(SameBits(pulled[0].elements, expected[0]));
  EXPECT_TRUE(SameBits(pulled[1].elements, expected[1]));
  EXPECT_EQ(pulled[0].version + 1, pulled[1].version) << "\"b\" was stepped once less";
}

TEST_F(HierarchicalPushTest, DDP_32_AnOwnerReceivesAKthOfTheGradients) {
  constexpr int kTrainers = 4;
  Start(kTrainers);
  const auto gradient = [](int trainer) { return Wavy({100, 100}, trainer); };
  InParallel(kTrainers, [&](int i) {
    Handles handles = Make(i, kTrainers, {"w"}, WithMomentum());
    const Context context = WithGradients(i, *handles.push, {gradient(i)});
    const absl::Status stepped = handles.push->Step(context);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
  const size_t pushed = traffic_.bytes.exchange(0);
  InParallel(kTrainers, [&](int i) {  // each trainer for itself
    OptimizerSettings settings;
    settings.mode = UpdateMode::Synchronous(kTrainers, UpdateMode::Reduction::kSum);
    const std::vector<RRef> parameters = Parameters(i, {"w"});
    const auto optimizer = Must(
        DistributedOptimizer::Create(worker(i), "plain", WithMomentum(), parameters, settings));
    Context context = Must(worker(i).NewContext());
    const std::vector<Variable> variables = Must(worker(i).ToHere(parameters, context));
    ASSERT_TRUE(context.Backward({Sum(Mul(variables[0], Variable(gradient(i))))}).ok());
    const absl::Status stepped = optimizer->Step(context);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
  const size_t plain = traffic_.bytes;
  const size_t one = 100 * 100 * sizeof(float);
  EXPECT_GE(pushed, 2 * one);
  EXPECT_LT(pushed, 2 * one + one / 10);
  EXPECT_GE(plain, 4 * one);
  EXPECT_LT(plain, 4 * one + one / 10);
}

TEST_F(HierarchicalPushTest, DDP_32_AContextIsSteppedOnce) {
  Start(2);
  InParallel(2, [&](int i) {
    Handles handles = Make(i, 2, {"b"}, WithMomentum());
    const Context context = WithGradients(i, *handles.push, {Wavy({5}, i)});
    EXPECT_TRUE(handles.push->Step(context).ok());
    const absl::Status again = handles.push->Step(context);
    EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(again.message()), HasSubstr("was stepped before"));
    const absl::Status next = handles.push->Step(WithGradients(i, *handles.push, {Wavy({5}, i)}));
    EXPECT_TRUE(next.ok()) << next;
  });
}

TEST_F(HierarchicalPushTest, DDP_32_OneOfTwoObjectsStepsAContextThatBothAreGiven) {
  Start(2);
  Sgd sgd;
  sgd.lr = 1;
  const auto full = [](double value) { return Must(Tensor::Full({5}, DType::kF32, value)); };
  std::vector<Handles> handles(2);
  std::vector<std::unique_ptr<HierarchicalPush>> second(2);
  InParallel(2, [&](int i) {
    handles[i] = Make(i, 2, {"b"}, sgd);
    JoinGroup(i, "again", world_.Names());
    second[i] = Must(HierarchicalPush::Create(worker(i), groups_[i], *handles[i].optimizer,
                                              Parameters(i, {"b"})));
  });
  const std::vector<float> initial = Read("b");
  const Context of_both = WithGradients(0, *handles[0].push, {full(1)});
  std::vector<absl::Status> pusher(2), other(2);
  InParallel(4, [&](int i) {
    const int rank = i / 2, object = i % 2;
    HierarchicalPush& push = object == 0 ? *handles[rank].push : *second[rank];
    if (rank == 0) {
      pusher[object] = push.Step(of_both);
    } else {
      other[object] = push.Step(WithGradients(1, push, {full(2)}));
    }
  });
  const int stepped = pusher[0].ok() ? 0 : 1;
  EXPECT_TRUE(pusher[stepped].ok()) << pusher[stepped];
  EXPECT_TRUE(other[stepped].ok()) << other[stepped];
  EXPECT_TRUE(absl::IsFailedPrecondition(pusher[1 - stepped])) << pusher[1 - stepped];
  EXPECT_THAT(std::string(pusher[1 - stepped].message()), HasSubstr("was stepped before"));
  EXPECT_TRUE(absl::IsFailedPrecondition(other[1 - stepped])) << other[1 - stepped];
  std::vector<float> change = Read("b");
  for (size_t i = 0; i < change.size(); ++i) change[i] -= initial[i];
  EXPECT_THAT(change, Each(::testing::FloatNear(-3, 1e-4)));
}

TEST_F(HierarchicalPushTest, DDP_32_ASparseGradientOnOneRankIsRefusedOnAll) {
  Start(2);
  MakeParameter(worker(0), "owner1", "rows", Wavy({4, 2}, 3));
  InParallel(2, [&](int i) {
    Handles handles = Make(i, 2, {"rows"}, Sgd());
    Context context = Must(worker(i).NewContext());
    const Variable rows = Must(handles.push->Variables(context))[0];
    const Variable some =
        SparseLeaf({Parameters(i, {"rows"})[0].value_id(), {4, 2}, DType::kF32, 1},
                   Tensor::Of<int64_t>({2}, {1, 3}), Wavy({2, 2}, 3));
    ASSERT_TRUE(context.Backward({Sum(i == 1 ? some : rows)}).ok());
    const absl::Status refused = handles.push->Step(context);
    EXPECT_EQ(refused.code(),
              i == 1 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(i == 1 ? "is sparse" : "rank 1 (t1)"));
    EXPECT_TRUE(groups_[i]->status().ok());
    // Nobody has pushed the gradients of rank 0, which may be stepped again.
    const absl::Status next =
        i == 0 ? handles.push->Step(context)
               : handles.push->Step(WithGradients(i, *handles.push, {Wavy({4, 2}, i)}));
    EXPECT_TRUE(next.ok()) << next;
  });
}

TEST_F(HierarchicalPushTest, DDP_32_AStepThatIsRefusedIsRefusedOnAllRanksWithTheSameError) {
  Start(4);
  std::vector<absl::Status> statuses(2);
  const OptimizerSettings settings{{}, {}, UpdateMode::Synchronous(2)};
  auto plain =
      Must(DistributedOptimizer::Create(worker(2), "main", Sgd(), Parameters(2, {"w"}), settings));
  InParallel(3, [&](int i) {
    if (i == 2) {  // it has a seat, and waits for the other
      EXPECT_TRUE(plain->Step(Must(worker(2).NewContext())).ok());
      return;
    }
    AwaitWaiting(1);
    Handles handles = Make(i, 2, {"w"}, Sgd(), UpdateMode::Reduction::kMean);
    StepOptions hasty;
    hasty.timeout = absl::Seconds(5);
    statuses[i] = handles.push->Step(WithGradients(i, *handles.push, {Wavy({100, 100}, i)}), hasty);
    EXPECT_TRUE(groups_[i]->Barrier().ok());
    if (i == 0) {  // ends the round
      auto own = Must(
          DistributedOptimizer::Create(worker(3), "main", Sgd(), Parameters(3, {"w"}), settings));
      EXPECT_TRUE(own->Step(Must(worker(3).NewContext())).ok());
    }
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kResourceExhausted) << statuses[0];
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("for 2 of the 2 seats"));
  EXPECT_EQ(statuses[1].code(), statuses[0].code());
  EXPECT_EQ(statuses[1].message(), statuses[0].message());
}

// The gradients of "b" are on another owner than the NaN.
TEST_F(HierarchicalPushTest, DDP_32_ANanInOneRanksGradientIsAnErrorOnAllRanksIfStepsAreClipped) {
  Start(2);
  const std::vector<std::string> names{"b", "w"};
  const auto initial = Must(worker(0).Pull(Parameters(0, names)));
  InParallel(2, [&](int i) {
    const Handles handles = Make(i, 2, names, WithMomentum());
    const auto step = [&](float element) {
      StepOptions clipped;
      clipped.clip_norm = 1;
      const Tensor large = Must(Tensor::Full({100, 100}, DType::kF32, i == 1 ? element : 1));
      return handles.push->Step(WithGradients(i, *handles.push, {Wavy({5}, i), large}), clipped);
    };
    const absl::Status refused = step(NAN);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("no norm to clip by"));
    EXPECT_TRUE(groups_[i]->Barrier().ok());
    if (i == 0) {
      const auto now = Must(worker(0).Pull(Parameters(0, names)));
      for (size_t p = 0; p < now.size(); ++p)
        EXPECT_TRUE(SameBits(now[p].elements, initial[p].elements)) << names[p];
    }
    EXPECT_TRUE(groups_[i]->Barrier().ok());
    const absl::Status stepped = step(1);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
}

TEST_F(HierarchicalPushTest, DDP_32_HalfGradientsAreAddedUpInF32AndRoundedOnce) {
  Start(2);
  CreateOptions options;
  options.requires_grad = true;
  Must(worker(0).GetOrCreate("owner1", "half", Zeros({3}, DType::kBF16), options));
  InParallel(2, [&](int i) {
    Sgd sgd;
    sgd.lr = 1;
    Handles handles = Make(i, 2, {"half"}, sgd);
    // In bf16, 257 is 256, and 259 is 260.
    const float mine = i == 0 ? 257 : 2;
    const absl::Status stepped = handles.push->Step(
        WithGradients(i, *handles.push, {Must(Tensor::Full({3}, DType::kF32, mine))}));
    ASSERT_TRUE(stepped.ok()) << stepped;
  });
  const Tensor now = Must(worker(0).Pull(Parameters(0, {"half"})))[0].elements;
  EXPECT_TRUE(SameBits(now, Must(Tensor::Full({3}, DType::kBF16, -260))));
}

TEST_F(HierarchicalPushTest, DDP_32_MistakesInItsParametersAreNamed) {
  Start(2);
  const OptimizerSettings settings{{}, {}, UpdateMode::Synchronous(2)};
  const std::vector<RRef> parameters = Parameters(0, {"w"});
  auto optimizer =
      Must(DistributedOptimizer::Create(worker(0), "main", Sgd(), parameters, settings));
  const auto code = [&](const std::vector<RRef>& given, const HierarchicalOptions& options = {}) {
    return HierarchicalPush::Create(worker(0), groups_[0], *optimizer, given, options)
        .status()
        .code();
  };
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({parameters[0], parameters[0]}), absl::StatusCode::kInvalidArgument);
  HierarchicalOptions endless;
  endless.step_timeout = absl::InfiniteDuration();
  EXPECT_EQ(code(parameters, endless), absl::StatusCode::kInvalidArgument);
  CreateOptions rows;
  rows.requires_grad = true;
  rows.rows = true;
  const RRef table = Must(worker(0).GetOrCreate("owner1", "table", Zeros({4, 2}), rows));
  const absl::Status refused =
      HierarchicalPush::Create(worker(0), groups_[0], *optimizer, {table}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("tables need an optimizer of their own"));
}

TEST_F(HierarchicalPushTest, DDP_32_AStepWaitsUntilOtherTrainersLeaveTheirSeats) {
  Start(4);
  std::vector<Handles> all(2);
  InParallel(2, [&](int i) { all[i] = Make(i, 2, {"w"}, Sgd()); });
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  std::vector<std::unique_ptr<DistributedOptimizer>> others(2);
  InParallel(2, [&](int i) {  // t2 and t3 take both seats
    Worker& other = worker(2 + i);
    others[i] = Must(
        DistributedOptimizer::Create(other, "main", Sgd(), Parameters(2 + i, {"w"}), settings));
    EXPECT_TRUE(others[i]->Step(Must(other.NewContext())).ok());
  });
  traffic_.steps = 0;
  std::atomic<bool> ended{false};
  InParallel(3, [&](int i) {
    if (i == 2) {
      // The second try comes when the first one was refused.
      while (traffic_.steps < 2 && !ended) std::this_thread::yield();
      others.clear();
      return;
    }
    const absl::Status stepped =
        all[i].push->Step(WithGradients(i, *all[i].push, {Wavy({100, 100}, i)}));
    EXPECT_TRUE(stepped.ok()) << stepped;
    ended = true;
  });
  EXPECT_GE(traffic_.steps, 2);
}

// Only a lack of seats is waited for.
TEST_F(HierarchicalPushTest, DDP_32_AStepForWhichAnOwnerHasNoRoomIsNotRepeated) {
  Start(2);
  std::vector<absl::Status> statuses(2);
  traffic_.no_room = true;
  InParallel(2, [&](int i) {
    Handles handles = Make(i, 2, {"w"}, Sgd());
    StepOptions hasty;
    hasty.timeout = absl::Seconds(30);
    statuses[i] = handles.push->Step(WithGradients(i, *handles.push, {Wavy({100, 100}, i)}), hasty);
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kResourceExhausted) << statuses[0];
  EXPECT_EQ(statuses[1].message(), statuses[0].message());
  EXPECT_EQ(traffic_.refused_steps, 1);
}

TEST_F(HierarchicalPushTest, DDP_32_UnevenInputsStepWithOptions) {
  scaling_ = LossScaling::Dynamic(8);
  Start(2);
  Sgd sgd;
  sgd.lr = 1;
  std::vector<Handles> all(2);
  InParallel(2, [&](int i) { all[i] = Make(i, 2, {"b"}, sgd); });
  const std::vector<float> initial = Read("b");
  InParallel(2, [&](int i) {
    HierarchicalPush& push = *all[i].push;
    push.IterateWith([&push] {
      StepOptions options;
      options.loss_scale = push.LossScale();
      options.clip_value = 1.5;
      return options;
    });
    int inputs = i + 1;
    const absl::Status done =
        RunUneven(worker(i), {&push}, [&]() -> absl::StatusOr<std::optional<Context>> {
          if (inputs-- == 0) return std::nullopt;
          return WithGradients(i, push, {Must(Tensor::Full({5}, DType::kF32, push.LossScale()))});
        });
    EXPECT_TRUE(done.ok()) << done;
  });
  std::vector<float> change = Read("b");
  for (size_t i = 0; i < change.size(); ++i) change[i] -= initial[i];
  EXPECT_THAT(change, Each(::testing::FloatNear(-1.5 - 1, 1e-5)));
}

TEST_F(HierarchicalPushTest, DDP_32_OneContextFeedsPushesOfDifferentParameters) {
  Start(2);
  const uint64_t before = Must(worker(0).Pull(Parameters(0, {"w"})))[0].version;
  InParallel(2, [&](int i) {
    const Handles deep = Make(i, 2, {"b"}, WithMomentum()),
                  wide = Make(i, 2, {"w"}, Sgd(), UpdateMode::Reduction::kSum, "wide");
    Context context = Must(worker(i).NewContext());
    int inputs = 1;
    const absl::Status done = RunUneven(worker(i), {deep.push.get(), wide.push.get()},
                                        [&]() -> absl::StatusOr<std::optional<Context>> {
                                          if (inputs-- == 0) return std::nullopt;
                                          const Variable b = Must(deep.push->Variables(context))[0];
                                          const Variable w = Must(wide.push->Variables(context))[0];
                                          PSD_RETURN_IF_ERROR(context.Backward({Sum(b), Sum(w)}));
                                          return std::move(context);
                                        });
    EXPECT_TRUE(done.ok()) << done;
  });
  for (const PulledParameter& each : Must(worker(0).Pull(Parameters(0, {"b", "w"}))))
    EXPECT_EQ(each.version, before + 1);
}

TEST_F(HierarchicalPushTest, DDP_32_AGradientOfAnotherShapeIsAnErrorOfItsRankAlone) {
  Start(2);
  InParallel(2, [&](int i) {
    Handles handles = Make(i, 2, {"b"}, Sgd());
    Context context = Must(worker(i).NewContext());
    Variable leaf = Must(handles.push->Variables(context))[0];
    if (i == 1) {
      leaf =
          Variable::Leaf(Must(Tensor::Zeros({4}, DType::kF32)), Parameters(1, {"b"})[0].value_id(),
                         /*version=*/1);
    }
    ASSERT_TRUE(context.Backward({Sum(leaf)}).ok());
    const absl::Status refused = handles.push->Step(context);
    EXPECT_EQ(refused.code(),
              i == 1 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(i == 1 ? "has a gradient" : "rank 1 (t1)"));
    EXPECT_TRUE(groups_[i]->status().ok());
    const absl::Status next = handles.push->Step(WithGradients(i, *handles.push, {Wavy({5}, i)}));
    EXPECT_TRUE(next.ok()) << next;
  });
}

}  // namespace
}  // namespace psd
