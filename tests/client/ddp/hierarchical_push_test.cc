// Trainers of two hosts: each host adds up its gradients, and one of its trainers pushes for all.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/collectives/group.h"
#include "client/ddp/hierarchical_push.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/status.h"
#include "core/carrier/carrier.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/rpc/rpc_agent.h"
#include "core/runtime/runtime.h"
#include "core/services/status/status_service.h"
#include "core/tensor/ops/elementwise.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/ddp/replica_world.h"
#include "tests/client/test_world.h"
#include "tests/core/picky_carrier.h"

namespace psd {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// The gradients that an owner has received.
struct Traffic {
  std::atomic<size_t> bytes{0};
  std::atomic<bool> mute{false};        // while true, the owner answers nobody
  std::atomic<bool> mute_steps{false};  // the next step that arrives sets `mute`
};

bool IsOf(const carrier::Message& message, const std::string& method) {
  return message.header.find(method) != std::string::npos;
}

worker::RuntimeOptions Counting(Traffic& traffic) {
  testing::PickyRules rules;
  rules.loses = [&traffic](const carrier::Message& message) {
    if (IsOf(message, "gradient.push") || IsOf(message, "autograd.gradient"))
      traffic.bytes += message.TotalBytes();
    if (IsOf(message, "optimizer.step") && traffic.mute_steps.exchange(false)) traffic.mute = true;
    return false;
  };
  rules.refuses = [&traffic](const carrier::Message&) -> absl::Status {
    return traffic.mute ? absl::UnavailableError("the owner is mute") : absl::OkStatus();
  };
  worker::RuntimeOptions options;
  options.session.lease = absl::Seconds(3);
  options.carrier =
      std::make_shared<testing::PickyCarrier>(Must(carrier::NewGrpcCarrier({})), rules);
  return options;
}

// Trainers t0, t1, … of hosts with two trainers each. Parameter "b" is on owner0, which is also the
// registrar, and "w" on owner1.
class HierarchicalPushTest : public ::testing::Test {
 protected:
  void Start(int trainers) {
    for (int i = 0; i < trainers; ++i) {
      WorkerOptions options = world_.Options(absl::StrCat("t", i));
      options.owners.push_back(owner1_.address());
      world_.workers.push_back(Must(Worker::Start(std::move(options))));
    }
    MakeParameter(*world_.workers[0], "owner0", "b", Wavy({5}, 1));
    MakeParameter(*world_.workers[0], "owner1", "w", Wavy({100, 100}, 2));
    groups_.resize(trainers);
    InParallel(trainers, [&](int i) {
      GroupOptions host;
      host.members = {absl::StrCat("t", i / 2 * 2), absl::StrCat("t", i / 2 * 2 + 1)};
      groups_[i] = Must(Group::Join(*world_.workers[i], absl::StrCat("host", i / 2), host));
    });
  }
  Worker& worker(int i) { return *world_.workers[i]; }
  std::vector<RRef> Parameters(int i, const std::vector<std::string>& names) {
    std::vector<RRef> parameters;
    for (const std::string& name : names)
      parameters.push_back(Must(worker(i).Lookup(name == "b" ? "owner0" : "owner1", name)));
    return parameters;
  }
  std::vector<float> Read(const std::string& name) {
    return psd::Read(worker(1), Parameters(1, {name})[0]);
  }
  // Trainer i's handles.
  struct Handles {
    std::unique_ptr<DistributedOptimizer> optimizer;
    std::unique_ptr<HierarchicalPush> push;
  };
  Handles Make(int i, uint32_t trainers, const std::vector<std::string>& names, const Sgd& sgd,
               UpdateMode::Reduction reduction = UpdateMode::Reduction::kSum) {
    OptimizerSettings settings;
    settings.mode = UpdateMode::Synchronous(trainers, reduction);
    const std::vector<RRef> parameters = Parameters(i, names);
    Handles handles;
    handles.optimizer =
        Must(DistributedOptimizer::Create(worker(i), "main", sgd, parameters, settings));
    handles.push =
        Must(HierarchicalPush::Create(worker(i), groups_[i], *handles.optimizer, parameters));
    return handles;
  }
  // Creates it again with the trainer's present group.
  void Recreate(int i, Handles& handles, const std::vector<std::string>& names) {
    handles.push = Must(
        HierarchicalPush::Create(worker(i), groups_[i], *handles.optimizer, Parameters(i, names)));
  }
  // A context in which the gradients of trainer i are `gradients`; undefined ones are missing.
  Context WithGradients(int i, HierarchicalPush& push, const std::vector<Tensor>& gradients) {
    Context context = Must(worker(i).NewContext());
    const std::vector<Variable> variables = Must(push.Variables(context));
    for (size_t p = 0; p < gradients.size(); ++p) {
      if (!gradients[p].defined()) continue;
      const absl::Status done = context.Backward({Sum(Mul(variables[p], Variable(gradients[p])))});
      EXPECT_TRUE(done.ok()) << done;
    }
    return context;
  }
  void Kill(int i) { RuntimeOf(worker(i)).agent().Shutdown(absl::ZeroDuration()); }
  // Returns when `steps` steps wait on owner1.
  void AwaitWaiting(uint64_t steps) {
    for (;;) {
      const auto status = owner1_.runtime().status().Collect({});
      if (status.optimizers_size() > 0 && status.optimizers(0).waiting() == steps) return;
      std::this_thread::yield();
    }
  }

  Traffic traffic_;
  TestOwner owner1_{"owner1", Counting(traffic_)};
  GroupWorld world_{0};
  std::vector<std::shared_ptr<Group>> groups_;
};

Sgd WithMomentum() {
  Sgd sgd;
  sgd.lr = 0.5;
  sgd.momentum = 0.9;
  return sgd;
}

Tensor Plus(const Tensor& a, const Tensor& b) {
  return Must(ops::Add(a, b));
}

std::string Culprit(const absl::Status& status) {
  const auto detail = GetDetail(status);
  return detail.has_value() ? detail->worker : "";
}
bool FateUnknown(const absl::Status& status) {
  const auto detail = GetDetail(status);
  return detail.has_value() && detail->fate_unknown;
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

// The round waits for the other host when the pusher dies.
TEST_F(HierarchicalPushTest, DDP_32_APusherThatDiesInARoundIsReplacedAndItsStepIsNotApplied) {
  constexpr int kTrainers = 4;
  Start(kTrainers);
  Sgd sgd;
  sgd.lr = 1;
  std::vector<Handles> all(kTrainers);
  InParallel(kTrainers, [&](int i) { all[i] = Make(i, kTrainers, {"w"}, sgd); });
  const auto step = [&](int i, double value) {
    const Context context =
        WithGradients(i, *all[i].push, {Must(Tensor::Full({100, 100}, DType::kF32, value))});
    return all[i].push->Step(context);
  };
  const std::vector<float> initial = Read("w");
  InParallel(kTrainers, [&](int i) { EXPECT_TRUE(step(i, 1).ok()); });  // all seats are taken
  InParallel(3, [&](int i) {
    if (i < 2) {
      const absl::Status failed = step(i, 1000);
      EXPECT_FALSE(failed.ok());
      if (i == 0) return;
      EXPECT_EQ(Culprit(failed), "t0") << failed;
      EXPECT_TRUE(FateUnknown(failed)) << failed;
    } else {
      AwaitWaiting(1);
      Kill(0);
    }
  });
  groups_[1] = Must(groups_[1]->Rebuild(worker(1)));
  EXPECT_EQ(groups_[1]->size(), 1);
  Recreate(1, all[1], {"w"});
  InParallel(kTrainers, [&](int i) {
    if (i == 0) return;
    const absl::Status stepped = step(i, 2);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
  std::vector<float> change = Read("w");
  for (size_t i = 0; i < change.size(); ++i) change[i] -= initial[i];
  EXPECT_THAT(change, Each(::testing::FloatNear(-4 - 3 * 2, 1e-4)));
}

// The owner has applied the step, and its answer does not reach the pusher.
TEST_F(HierarchicalPushTest, DDP_32_AStepWhosePusherDiedBeforeItToldTheOthersCountsOnce) {
  Start(2);
  Sgd sgd;
  sgd.lr = 1;
  std::vector<Handles> all(2);
  InParallel(2, [&](int i) { all[i] = Make(i, 2, {"w"}, sgd); });
  const std::vector<float> initial = Read("w");
  std::vector<Context> contexts;
  for (int i : {0, 1}) {
    contexts.push_back(
        WithGradients(i, *all[i].push, {Must(Tensor::Full({100, 100}, DType::kF32, 1))}));
  }
  traffic_.mute_steps = true;
  InParallel(3, [&](int i) {
    if (i < 2) {
      const absl::Status failed = all[i].push->Step(contexts[i]);
      EXPECT_FALSE(failed.ok());
      if (i == 0) return;
      EXPECT_EQ(Culprit(failed), "t0") << failed;
      EXPECT_TRUE(FateUnknown(failed)) << failed;
    } else {
      const auto applied = [&] {
        const auto status = owner1_.runtime().status().Collect({});
        return status.optimizers_size() > 0 && status.optimizers(0).steps() == 1;
      };
      while (!applied()) std::this_thread::yield();
      Kill(0);
      traffic_.mute = false;
    }
  });
  groups_[1] = Must(groups_[1]->Rebuild(worker(1)));
  Recreate(1, all[1], {"w"});
  EXPECT_EQ(all[1].push->Step(contexts[1]).code(), absl::StatusCode::kFailedPrecondition)
      << "its gradients are in the step of the trainer that died";
  const absl::Status stepped = all[1].push->Step(
      WithGradients(1, *all[1].push, {Must(Tensor::Full({100, 100}, DType::kF32, 10))}));
  EXPECT_TRUE(stepped.ok()) << stepped;
  std::vector<float> change = Read("w");
  for (size_t i = 0; i < change.size(); ++i) change[i] -= initial[i];
  EXPECT_THAT(change, Each(::testing::FloatNear(-2 - 10, 1e-4)));
}

TEST_F(HierarchicalPushTest, DDP_32_ARankThatDiedIsNamedAndThePusherGoesOnForTheOthers) {
  Start(2);
  Sgd sgd;
  sgd.lr = 1;
  std::vector<Handles> all(2);
  InParallel(2, [&](int i) { all[i] = Make(i, 2, {"b"}, sgd); });
  const auto step = [&](int i, double value) {
    return all[i].push->Step(
        WithGradients(i, *all[i].push, {Must(Tensor::Full({5}, DType::kF32, value))}));
  };
  const std::vector<float> initial = psd::Read(worker(0), Parameters(0, {"b"})[0]);
  InParallel(2, [&](int i) { EXPECT_TRUE(step(i, 1).ok()); });
  Kill(1);
  const absl::Status failed = step(0, 1000);
  EXPECT_EQ(Culprit(failed), "t1") << failed;
  EXPECT_FALSE(FateUnknown(failed)) << failed;
  groups_[0] = Must(groups_[0]->Rebuild(worker(0)));
  Recreate(0, all[0], {"b"});
  const absl::Status stepped = step(0, 10);
  EXPECT_TRUE(stepped.ok()) << stepped;
  std::vector<float> change = psd::Read(worker(0), Parameters(0, {"b"})[0]);
  for (size_t i = 0; i < change.size(); ++i) change[i] -= initial[i];
  EXPECT_THAT(change, Each(::testing::FloatNear(-2 - 10, 1e-4)));
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

TEST_F(HierarchicalPushTest, DDP_32_ASparseGradientOnOneRankIsRefusedOnAll) {
  Start(2);
  MakeParameter(worker(0), "owner1", "rows", Wavy({4, 2}, 3));
  InParallel(2, [&](int i) {
    Handles handles = Make(i, 2, {"rows"}, Sgd());
    Context context = Must(worker(i).NewContext());
    const Variable rows = Must(handles.push->Variables(context))[0];
    const Variable loss =
        i == 1 ? Sum(Embedding(rows, Tensor::Of<int64_t>({2}, {1, 3}))) : Sum(rows);
    ASSERT_TRUE(context.Backward({loss}).ok());
    const absl::Status refused = handles.push->Step(context);
    EXPECT_EQ(refused.code(),
              i == 1 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(i == 1 ? "is sparse" : "rank 1 (t1)"));
    EXPECT_TRUE(groups_[i]->status().ok());
    const absl::Status next =
        handles.push->Step(WithGradients(i, *handles.push, {Wavy({4, 2}, i)}));
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
    hasty.timeout = absl::Milliseconds(300);
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

}  // namespace
}  // namespace psd
