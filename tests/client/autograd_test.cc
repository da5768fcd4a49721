// Distributed autograd through the public API: whole workers, real connections, many threads.

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "core/base/mutex.h"
#include "core/runtime/runtime.h"
#include "core/services/calls/call_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;
using ::testing::Pointwise;

const OptimizerSpec kSgd1{"sgd", {{"lr", 1}}};

// The function "cube" computes x³ by two calls to owner1. It makes the second one when the first
// is answered, on the thread that handles the answer.
Future<Values> Cube(const services::FunctionCall& call, Values arguments) {
  const Function mul = Function::Operator("mul", 2);
  Promise<Values> cube;
  call.RpcAsync("owner1", mul, {arguments[0], arguments[0]})
      .OnReady([cube, mul, arguments, call](const absl::StatusOr<Values>& square) {
        if (!square.ok()) return static_cast<void>(cube.Set(square.status()));
        call.RpcAsync("owner1", mul, {(*square)[0], arguments[0]})
            .OnReady([cube](const absl::StatusOr<Values>& result) { cube.Set(result); });
      });
  return cube.future();
}

// The function "show" keeps the reference that it is given, or returns the one that it keeps.
class Shown {
 public:
  Values operator()(Values arguments) {
    MutexLock lock(mutex_);
    if (arguments.empty()) return kept_;
    kept_ = std::move(arguments);
    return {};
  }

 private:
  Mutex mutex_;  // leaf
  Values kept_ PSD_GUARDED_BY(mutex_);
};

worker::RuntimeOptions WithCube() {
  worker::RuntimeOptions options;
  EXPECT_TRUE(options.functions.RegisterAsync("cube", Cube).ok());
  EXPECT_TRUE(options.functions
                  .Register("show",
                            [shown = std::make_shared<Shown>()](const services::FunctionCall&,
                                                                Values arguments) {
                              return absl::StatusOr<Values>((*shown)(std::move(arguments)));
                            })
                  .ok());
  EXPECT_TRUE(
      options.functions
          .Register(
              "new_leaf",
              [](const services::FunctionCall&, const Values&) {
                return absl::StatusOr<Values>({Variable(Tensor::Of<float>({2}, {3, 4}), true)});
              })
          .ok());
  return options;
}

class AutogradTest : public ::testing::Test {
 protected:
  std::unique_ptr<Worker> StartOther(const std::string& name) {
    return StartTrainer(name, {owner0_.address(), owner1_.address()});
  }
  RRef Make(const std::string& owner, const std::string& name, std::vector<float> elements) {
    const auto size = static_cast<int64_t>(elements.size());
    Tensor tensor = Must(Tensor::Zeros({size}, DType::kF32));
    std::copy(elements.begin(), elements.end(), tensor.mutable_data<float>());
    return MakeParameter(*trainer_, owner, name, tensor);
  }
  static Variable Pull(Worker& worker, const RRef& parameter, const Context& context) {
    return Must(worker.ToHere({parameter}, context))[0];
  }
  static std::vector<float> GradientOf(const Context& context, const RRef& parameter) {
    return Elements(Must(context.Gradient(parameter)));
  }

  TestOwner owner0_{"owner0", WithCube()};
  TestOwner owner1_{"owner1"};
  std::unique_ptr<Worker> trainer_ =
      StartTrainer("trainer0", {owner0_.address(), owner1_.address()});
};

// Runs `work(0)`, `work(1)`, … at once, each on a thread of its own.
template <typename Work>
void AtOnce(int count, const Work& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&work, i] { work(i); });
  for (std::thread& thread : threads) thread.join();
}

TEST_F(AutogradTest, DAG_25_ThreeTrainersAtOneOwnerEachInItsContext) {
  for (const std::string owner : {"owner0", "owner1"}) {
    Make(owner, "w", {1, 2});
    AtOnce(3, [&](int i) {
      auto trainer = StartOther(absl::StrCat(owner, "-trainer", i));
      RRef w = Must(trainer->Lookup(owner, "w"));
      Context context = Must(trainer->NewContext());
      Variable pulled = Pull(*trainer, w, context);
      EXPECT_TRUE(context.Backward({Sum(pulled * pulled * (i + 1.0))}).ok());
      EXPECT_THAT(GradientOf(context, w), ElementsAre(2 * (i + 1), 4 * (i + 1)));
    });
  }
}

TEST_F(AutogradTest, DAG_49_ManyThreadsOfManyTrainersEachInItsContext) {
  constexpr int kThreads = 20;
  RRef w = Make("owner0", "w", {1, 2});
  AtOnce(3, [&](int i) {
    auto trainer = StartOther(absl::StrCat("other", i));
    RRef mine = Must(trainer->Lookup("owner0", "w"));
    AtOnce(kThreads, [&](int thread) {
      const double factor = i * kThreads + thread + 1;
      Variable x(Tensor::Of<float>({2}, {3, 4}), /*requires_grad=*/true);
      Context context = Must(trainer->NewContext());
      CallOptions in_context;
      in_context.context = &context;
      Values product = Must(trainer->RpcSync(
          "owner0", Function::Operator("mul", 2),
          {x, std::shared_ptr<const store::RemoteReference>(mine.body())}, in_context));
      EXPECT_TRUE(context.Backward({Sum(*product[0].As<Variable>() * factor)}).ok());
      EXPECT_THAT(GradientOf(context, mine), ElementsAre(3 * factor, 4 * factor));
      EXPECT_THAT(Elements(Must(context.Gradient(x))), ElementsAre(factor, 2 * factor));
    });
  });
}

TEST_F(AutogradTest, DAG_51_AHookOnAPulledParameterChangesWhatItsOwnerGets) {
  RRef w = Make("owner0", "w", {1, -2});
  Context context = Must(trainer_->NewContext());
  Variable pulled = Pull(*trainer_, w, context);
  int calls = 0;
  ASSERT_TRUE(pulled
                  .AddGradientHook([&](const Tensor& gradient) -> absl::StatusOr<Tensor> {
                    ++calls;
                    return Mul(Variable(gradient), 10).tensor();
                  })
                  .ok());
  ASSERT_TRUE(context.Backward({Sum(pulled * 3.0) + Sum(pulled * pulled)}).ok());
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(GradientOf(context, w), ElementsAre(50, -10));
}

TEST_F(AutogradTest, DAG_55_TheContextGoesOnWithAsynchronousFunctions) {
  owner0_.runtime().agent().AddPeer("owner1", owner1_.address().address);
  Variable x(Tensor::Of<float>({2}, {1, -2}), /*requires_grad=*/true);
  Context context = Must(trainer_->NewContext());
  CallOptions in_context;
  in_context.context = &context;
  Values cube = Must(trainer_->RpcSync("owner0", Function::Registered("cube"), {x}, in_context));
  ASSERT_TRUE(context.Backward({Sum(*cube[0].As<Variable>())}).ok());
  EXPECT_THAT(Elements(Must(context.Gradient(x))), ElementsAre(3, 12));
}

TEST_F(AutogradTest, DAG_55_AndWithRemoteCreations) {
  owner0_.runtime().agent().AddPeer("owner1", owner1_.address().address);
  Variable x(Tensor::Of<float>({2}, {1, -2}), /*requires_grad=*/true);
  Context context = Must(trainer_->NewContext());
  CallOptions in_context;
  in_context.context = &context;
  RRef cube = Must(trainer_->Remote("owner0", Function::Registered("cube"), {x}, in_context));
  ASSERT_TRUE(context.Backward({Sum(Pull(*trainer_, cube, context))}).ok());
  EXPECT_THAT(Elements(Must(context.Gradient(x))), ElementsAre(3, 12));
}

TEST_F(AutogradTest, DAG_57_UnderNoGradNothingIsRecordedAndResultsAreConstants) {
  const RRef w = Make("owner0", "w", {1, 2});
  const RRef own = Make("trainer0", "own", {3, 4});
  CreateOptions rows;
  rows.requires_grad = rows.rows = true;
  const RRef table = Must(trainer_->GetOrCreate("owner0", "table", Full({2, 2}, 1), rows));
  const RRef own_table =
      Must(trainer_->GetOrCreate("trainer0", "own_table", Full({2, 2}, 1), rows));
  const Variable x(Tensor::Of<float>({2}, {5, 6}), true);
  const Context context = Must(trainer_->NewContext());
  CallOptions options;
  options.context = &context;
  const Tensor ids = Tensor::Of<int64_t>({1}, {1});
  const auto results = [&] {
    std::vector<Variable> all = Must(trainer_->ToHere({w, own}, context));
    for (const Values& values :
         {Must(trainer_->ToHereAsync({w, own}, options).Wait()),
          Must(trainer_->RpcSync("owner0", Function::Operator("mul", 2), {x, w}, options)),
          Must(trainer_->RpcSync("trainer0", Function::Operator("mul", 2), {x, own}, options)),
          Must(trainer_->ToHere(
              {Must(trainer_->Remote("owner0", Function::Operator("mul", 2), {x, w}, options))},
              options))}) {
      for (const Value& value : values) all.push_back(*value.As<Variable>());
    }
    for (const Variable& row :
         Must(trainer_->LookUpRows({{table, ids}, {own_table, ids}}, context)))
      all.push_back(row);
    return all;
  };
  {
    NoGradGuard no_grad;
    for (const Variable& result : results()) EXPECT_FALSE(result.requires_grad());
    EXPECT_EQ(owner0_.runtime().autograd().stats().contexts, 0u) << "the context never got there";
  }
  for (const Variable& result : results()) EXPECT_TRUE(result.requires_grad());
}

TEST_F(AutogradTest, RREF_47_BackwardFromAReferenceUnderNoGrad) {
  const RRef w = Make("owner0", "w", {1, 2});
  Context context = Must(trainer_->NewContext());
  CallOptions options;
  options.context = &context;
  const RRef sum = Must(trainer_->Remote("owner0", Function::Operator("sum", 1), {w}, options));
  NoGradGuard no_grad;
  ASSERT_TRUE(context.Backward(sum).ok());
  EXPECT_THAT(GradientOf(context, w), ElementsAre(1, 1));
}

TEST_F(AutogradTest, ANewLeafThatRemoteLeavesBehindRequiresGrad) {
  const RRef leaf = Must(trainer_->Remote("owner0", Function::Registered("new_leaf"), {}));
  Context context = Must(trainer_->NewContext());
  const Variable pulled = Pull(*trainer_, leaf, context);
  ASSERT_TRUE(pulled.requires_grad());
  ASSERT_TRUE(context.Backward({Sum(pulled * pulled)}).ok());
  EXPECT_THAT(GradientOf(context, leaf), ElementsAre(6, 8));
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {leaf}));
  ASSERT_TRUE(optimizer->Step(context).ok());
  EXPECT_THAT(Read(*trainer_, leaf), ElementsAre(-3, -4));
}

// Both passes walk over the one graph of the result, which their owner keeps.
TEST_F(AutogradTest, TwoTrainersGoBackwardFromOneRemoteResultAtOnce) {
  constexpr int kRounds = 100, kProducts = 8;
  const RRef w = Make("owner0", "w", {1, -2});
  ProgramBuilder builder;
  ProgramBuilder::Ref product = builder.Input();
  const ProgramBuilder::Ref x = product;
  for (int i = 0; i < kProducts; ++i) product = builder.Call("mul", {product, x});
  const Function power(Must(builder.Build({product})));
  const Function show = Function::Registered("show");
  const auto other = StartOther("trainer1");
  const RRef parameters[] = {w, Must(other->Lookup("owner0", "w"))};
  for (int round = 0; round < kRounds; ++round) {
    Context mine = Must(trainer_->NewContext()), theirs = Must(other->NewContext());
    CallOptions in_context;
    in_context.context = &mine;
    const RRef made = Must(trainer_->Remote("owner0", power, {w}, in_context));
    Must(trainer_->RpcSync("owner0", show, {made}));
    const RRef shown = RRef::FromValue(Must(other->RpcSync("owner0", show, {}))[0]);
    ASSERT_TRUE(shown.valid());
    const Variable losses[] = {Sum(Pull(*trainer_, made, mine)), Sum(Pull(*other, shown, theirs))};
    Context* const contexts[] = {&mine, &theirs};
    absl::Status done[2];
    AtOnce(2, [&](int i) { done[i] = contexts[i]->Backward({losses[i]}); });
    for (int i = 0; i < 2; ++i) {
      if (done[i].ok()) {
        EXPECT_THAT(GradientOf(*contexts[i], parameters[i]), ElementsAre(9, 9 * 256));
      } else {
        EXPECT_EQ(done[i].code(), absl::StatusCode::kFailedPrecondition) << done[i];
        EXPECT_FALSE(contexts[i]->Gradient(parameters[i]).ok());
      }
    }
    ASSERT_TRUE(done[0].ok() || done[1].ok()) << done[0] << done[1];
  }
}

TEST_F(AutogradTest, WhyThereIsNoGradientIsSaid) {
  const RRef w = Make("owner0", "w", {1, 2}), other = Make("owner1", "other", {1, 2});
  const RRef still = Must(trainer_->GetOrCreate("owner0", "still", Zeros({2})));
  Context context = Must(trainer_->NewContext());
  const Variable pulled = Pull(*trainer_, w, context);
  const auto says = [](const absl::Status& status, absl::StatusCode code, const char* text) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  using Code = absl::StatusCode;
  says(context.Gradient(other).status(), Code::kNotFound, "never reached owner1");
  says(context.Gradient(w).status(), Code::kNotFound, "no loss depended on it");
  says(context.Gradient(still).status(), Code::kInvalidArgument, "'still' is parameter");
  says(context.Gradient(pulled).status(), Code::kInvalidArgument, "the result of an operation");
  says(context.Gradient(Variable(Tensor::Scalar(1.0f))).status(), Code::kInvalidArgument,
       "a constant");
  says(context.Gradient(Variable::Invalid(absl::DataLossError("torn"))).status(), Code::kDataLoss,
       "torn");
  says(context.Gradient(Variable(Tensor::Scalar(1.0f), true)).status(), Code::kNotFound,
       "no loss depended on it");
}

// Another trainer steps the parameter between the forward and the backward that use it.
class ChangedParameterTest : public AutogradTest {
 protected:
  void StepElsewhere() {
    auto other = StartOther("other");
    RRef w = Must(other->Lookup("owner0", "w"));
    auto optimizer = Must(DistributedOptimizer::Create(*other, kSgd1, {w}));
    Context context = Must(other->NewContext());
    ASSERT_TRUE(context.Backward({Sum(Pull(*other, w, context) * 100.0)}).ok());
    ASSERT_TRUE(optimizer->Step(context).ok());
    EXPECT_THAT(Read(*trainer_, w_), ElementsAre(-97, -95));
  }
  // Makes a step, and returns the staleness that the owner found in the gradients of `context`.
  uint64_t StalenessOf(const Context& context) {
    StepOutcome outcome = optimizer_->StepDetailed(context);
    EXPECT_TRUE(outcome.status().ok()) << outcome.status();
    return outcome.owners[0].max_staleness;
  }

  RRef w_ = Make("owner0", "w", {3, 5});
  std::unique_ptr<DistributedOptimizer> optimizer_ =
      Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_}));
};

TEST_F(ChangedParameterTest, DAG_59_GradientsAreThoseOfTheVersionThatWasPulled) {
  Context context = Must(trainer_->NewContext());
  Variable pulled = Pull(*trainer_, w_, context);
  Variable loss = Sum(pulled * pulled);
  StepElsewhere();
  absl::Status done = context.Backward({loss});
  ASSERT_TRUE(done.ok()) << done;
  EXPECT_THAT(GradientOf(context, w_), ElementsAre(6, 10));
  EXPECT_EQ(StalenessOf(context), 1u);
}

TEST_F(ChangedParameterTest, DAG_59_AndOfTheVersionThatACallOnTheOwnerSaved) {
  Variable x(Tensor::Of<float>({2}, {1, 2}), /*requires_grad=*/true);
  Context context = Must(trainer_->NewContext());
  CallOptions in_context;
  in_context.context = &context;
  Values product = Must(
      trainer_->RpcSync("owner0", Function::Operator("mul", 2),
                        {x, std::shared_ptr<const store::RemoteReference>(w_.body())}, in_context));
  StepElsewhere();
  ASSERT_TRUE(context.Backward({Sum(*product[0].As<Variable>())}).ok());
  EXPECT_THAT(Elements(Must(context.Gradient(x))), ElementsAre(3, 5));
  EXPECT_THAT(GradientOf(context, w_), ElementsAre(1, 2));
  EXPECT_EQ(StalenessOf(context), 1u);
}

TEST_F(ChangedParameterTest, GradientsFromOutsideOfATensorThatWasPulledInTheContext) {
  Context context = Must(trainer_->NewContext());
  Variable pulled = Pull(*trainer_, w_, context);
  StepElsewhere();
  absl::Status done = context.BackwardFrom({pulled}, {Tensor::Of<float>({2}, {7, 8})});
  ASSERT_TRUE(done.ok()) << done;
  EXPECT_THAT(GradientOf(context, w_), ElementsAre(7, 8));
  EXPECT_EQ(StalenessOf(context), 1u);
  EXPECT_THAT(Read(*trainer_, w_), ElementsAre(-97 - 7, -95 - 8));
}

TEST_F(ChangedParameterTest, GradientsFromOutsideByReferenceAndVersion) {
  PulledParameter pulled = Must(trainer_->Pull({w_}))[0];
  EXPECT_THAT(Elements(pulled.elements), ElementsAre(3, 5));
  StepElsewhere();
  Context context = Must(trainer_->NewContext());
  for (int i = 0; i < 2; ++i) {
    absl::Status pushed = context.PushGradient(w_, Tensor::Of<float>({2}, {1, 2}), pulled.version);
    ASSERT_TRUE(pushed.ok()) << pushed;
  }
  EXPECT_THAT(GradientOf(context, w_), ElementsAre(2, 4)) << "they add up";
  EXPECT_EQ(StalenessOf(context), 1u);
  EXPECT_EQ(Must(trainer_->Pull({w_}))[0].version, pulled.version + 2);
}

TEST_F(AutogradTest, PullsFromSeveralOwnersInTheOrderAsked) {
  RRef a = Make("owner1", "a", {1}), b = Make("owner0", "b", {2}), c = Make("owner1", "c", {3});
  RRef mine = Make("trainer0", "mine", {4});
  auto pulled = Must(trainer_->Pull({a, b, mine, c}));
  ASSERT_EQ(pulled.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const float element = std::vector<float>{1, 2, 4, 3}[i];
    EXPECT_THAT(Elements(pulled[i].elements), ElementsAre(element));
    EXPECT_EQ(pulled[i].version, 2u);  // created, then assigned
  }
}

TEST_F(AutogradTest, GradientsFromOutsideAreCheckedBeforeAnythingChanges) {
  RRef w = Make("owner0", "w", {1, 2});
  RRef constant = Must(trainer_->GetOrCreate("owner0", "constant", Zeros({2})));
  RRef made = Must(
      trainer_->Remote("owner0", Function::Operator("neg", 1), {Tensor::Of<int64_t>({2}, {1, 2})}));
  Context context = Must(trainer_->NewContext());
  const auto refused = [&](const RRef& parameter, const Tensor& gradient, uint64_t version) {
    absl::Status status = context.PushGradient(parameter, gradient, version);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  const Tensor fits = Tensor::Of<float>({2}, {1, 1});
  EXPECT_THAT(refused(w, Tensor::Of<float>({3}, {1, 1, 1}), 1), HasSubstr("f32[2]"));
  EXPECT_THAT(refused(w, Tensor::Of<double>({2}, {1, 1}), 1), HasSubstr("f32[2]"));
  EXPECT_THAT(refused(w, Tensor(), 1), HasSubstr("undefined"));
  EXPECT_THAT(refused(w, fits, 3), HasSubstr("at version 2"));
  EXPECT_THAT(refused(constant, fits, 1), HasSubstr("not a parameter that requires grad"));
  EXPECT_EQ(context.Gradient(w).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(trainer_->Pull({made}).status().code(), absl::StatusCode::kInvalidArgument);
}

// A gradient belongs to the versions that its trainer pulled, even if other trainers have stepped
// since.
TEST_F(AutogradTest, TrainersShareParametersThatOthersStep) {
  constexpr int kTrainers = 4;
  constexpr int kSteps = 25;
  Make("owner0", "w", {1, 2, 3});
  Make("owner1", "b", {0.5, -1, 2});
  AtOnce(kTrainers, [&](int i) {
    auto trainer = StartOther(absl::StrCat("other", i));
    std::vector<RRef> parameters = {Must(trainer->Lookup("owner0", "w")),
                                    Must(trainer->Lookup("owner1", "b"))};
    const OptimizerSpec slow{"sgd", {{"lr", 1e-3}}};
    auto optimizer = Must(DistributedOptimizer::Create(*trainer, "main", slow, parameters));
    for (int step = 0; step < kSteps; ++step) {
      Context context = Must(trainer->NewContext());
      auto pulled = Must(trainer->ToHere(parameters, context));
      std::vector<float> w = Elements(pulled[0].tensor()), b = Elements(pulled[1].tensor());
      ASSERT_TRUE(context.Backward({Sum(pulled[0] * pulled[0] * pulled[1])}).ok());
      std::vector<float> dw, db;
      for (size_t j = 0; j < w.size(); ++j) {
        dw.push_back(2 * w[j] * b[j]);
        db.push_back(w[j] * w[j]);
      }
      EXPECT_THAT(GradientOf(context, parameters[0]), Pointwise(FloatEq(), dw));
      EXPECT_THAT(GradientOf(context, parameters[1]), Pointwise(FloatEq(), db));
      EXPECT_TRUE(optimizer->Step(context).ok());
    }
  });
  for (const OwnerAddress& owner : {owner0_.address(), owner1_.address()}) {
    const std::string name = owner.name == "owner0" ? "w" : "b";
    PulledParameter last = Must(trainer_->Pull({Must(trainer_->Lookup(owner.name, name))}))[0];
    EXPECT_EQ(last.version, 2u + kTrainers * kSteps) << "no step was lost";
  }
}

}  // namespace
}  // namespace psd
