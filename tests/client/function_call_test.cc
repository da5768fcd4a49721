// The requests that registered functions make through their FunctionCall.

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/mutex.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/function_world.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

// The call of "leave_open", which the test checks after the function has returned.
struct OpenCall {
  Mutex mutex;  // leaf
  std::optional<FunctionCall> call PSD_GUARDED_BY(mutex);

  FunctionCall Copy() {
    MutexLock lock(mutex);
    return *call;
  }
};

class FunctionCallTest : public FunctionWorld {
 protected:
  explicit FunctionCallTest(std::shared_ptr<OpenCall> open = std::make_shared<OpenCall>())
      : FunctionWorld(Functions(open)), open_(std::move(open)) {}

  const std::shared_ptr<OpenCall> open_;  // shared with the functions

 private:
  static Offer Functions(const std::shared_ptr<OpenCall>& open) {
    Offer offer;
    offer.more = [open](FunctionRegistry& functions) {
      using Result = absl::StatusOr<Values>;
      const auto add = [&](const std::string& name, services::SyncFunction function) {
        EXPECT_TRUE(functions.Register(name, std::move(function)).ok());
      };
      add("leave_open", [open](const FunctionCall& call, const Values&) -> Result {
        MutexLock lock(open->mutex);
        open->call.emplace(call);
        return Values{};
      });
      add("keep_leaf", [](const FunctionCall& call, Values arguments) -> Result {
        PSD_ASSIGN_OR_RETURN(const RRef kept, call.Keep(arguments[0], /*requires_grad=*/true));
        return Values{kept, call.in_context()};
      });
      // Fetches its argument, and has owner1 square it.
      add("fetch_and_square", [](const FunctionCall& call, Values arguments) -> Result {
        PSD_ASSIGN_OR_RETURN(const Values x, call.ToHere({RRef::FromValue(arguments[0])}));
        return call.RpcSync("owner1", Function::Operator("mul", 2), {x[0], x[0]});
      });
      add("wait_for_park", [](const FunctionCall& call, const Values&) -> Result {
        return call.RpcSync("owner1", Named("park"), {});
      });
    };
    return offer;
  }
};

TEST_F(FunctionCallTest, GradientsFlowThroughWhatAFunctionAsksFor) {
  const RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({1}, {3}));
  Context context = Must(trainer_->NewContext());
  CallOptions recorded;
  recorded.context = &context;
  const Values square = Must(trainer_->RpcSync("owner1", Named("fetch_and_square"), {w}, recorded));
  ASSERT_TRUE(context.Backward({Sum(*square[0].As<Variable>())}).ok());
  EXPECT_EQ(Elements(Must(context.Gradient(w)))[0], 6);
}

TEST_F(FunctionCallTest, AHookMayCallTheWorkerWhoseResultTheLossUses) {
  Context context = Must(trainer_->NewContext());
  CallOptions recorded;
  recorded.context = &context;
  const Variable x(Tensor::Of<float>({1}, {3}), true), factor(Tensor::Of<float>({1}, {5}), true);
  // The result comes from owner1 through owner0, so both are marked before gradients are sent.
  const Values passed_on =
      Must(trainer_->RpcSync("owner0", Named("call"), {"owner1", "echo", x}, recorded));
  Variable scaled = Mul(*passed_on[0].As<Variable>(), factor);
  absl::Status asked = absl::UnknownError("the hook has not run");
  const absl::Status added =
      scaled.AddGradientHook([&](const Tensor& gradient) -> absl::StatusOr<Tensor> {
        CallOptions soon;
        soon.timeout = absl::Seconds(20);
        asked = trainer_->RpcSync("owner0", Named("who"), {}, soon).status();
        return gradient;
      });
  ASSERT_TRUE(added.ok()) << added;
  ASSERT_TRUE(context.Backward({Sum(scaled)}).ok());
  EXPECT_TRUE(asked.ok()) << asked;
}

TEST_F(FunctionCallTest, AKeptLeafIsAParameter) {
  const Values kept =
      Must(trainer_->RpcSync("owner0", Named("keep_leaf"), {Tensor::Of<float>({1}, {5})}));
  EXPECT_FALSE(*kept[1].As<bool>());
  const RRef leaf = RRef::FromValue(kept[0]);
  EXPECT_EQ(leaf.owner(), "owner0");
  Context context = Must(trainer_->NewContext());
  const auto here = Must(trainer_->ToHere({leaf}, context));
  ASSERT_TRUE(context.Backward({Sum(here[0])}).ok());
  EXPECT_EQ(Elements(Must(context.Gradient(leaf)))[0], 1);
}

TEST_F(FunctionCallTest, ARequestEndsWithTheTimeOfTheCallThatMadeIt) {
  CallOptions hurried;
  hurried.timeout = absl::Seconds(1);
  EXPECT_EQ(trainer_->RpcSync("owner0", Named("wait_for_park"), {}, hurried).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  while (offer_.parking->size() > 0) offer_.parking->Take().Set(Values{});
  // Later requests of a call that has ended do not get more time either.
  absl::Status left_open = absl::DeadlineExceededError("not begun");
  while (absl::IsDeadlineExceeded(left_open))
    left_open = trainer_->RpcSync("owner0", Named("leave_open"), {}, hurried).status();
  ASSERT_TRUE(left_open.ok()) << left_open;
  const FunctionCall call = open_->Copy();
  EXPECT_EQ(call.caller().name, "trainer0");
  EXPECT_EQ(call.self().name, "owner0");
  while (!call.cancelled()) absl::SleepFor(absl::Milliseconds(1));
  const absl::Status late = call.RpcSync("owner1", Named("nothing"), {}).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(late.message(), HasSubstr("owner0"));
  EXPECT_EQ(call.Remote("owner1", Named("nothing"), {}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(FunctionCallTest, ACallMayOutliveItsWorker) {
  auto other = std::make_unique<TestOwner>("other", offer_.Options());
  auto trainer = StartTrainer("trainer1", {other->address()});
  Must(trainer->RpcSync("other", Named("leave_open"), {}));
  const FunctionCall call = open_->Copy();
  trainer.reset();
  other.reset();
  EXPECT_EQ(call.self().name, "other");
  for (const absl::Status& refused : {call.RpcSync("other", Named("nothing"), {}).status(),
                                      call.Remote("other", Named("nothing"), {}).status(),
                                      call.ToHere({}).status(), call.Keep(1).status()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(refused.message(), HasSubstr("other"));
  }
}

TEST_F(FunctionCallTest, AnUnknownCalleeIsNamed) {
  Must(trainer_->RpcSync("owner0", Named("leave_open"), {}));
  const FunctionCall call = open_->Copy();
  for (const absl::Status& unknown : {call.RpcSync("nobody", Named("nothing"), {}).status(),
                                      call.Remote("nobody", Named("nothing"), {}).status()}) {
    EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(unknown.message(), HasSubstr("nobody"));
  }
}

TEST_F(FunctionCallTest, AWorkerCountsItsReferencesAndContexts) {
  EXPECT_EQ(trainer_->ReferenceStats().held, 0u);
  {
    const RRef held = Must(trainer_->Remote("owner0", Named("echo"), {1}));
    ASSERT_TRUE(held.confirmed().Wait().ok());
    const Context context = Must(trainer_->NewContext());
    EXPECT_EQ(trainer_->ReferenceStats().held, 1u);
    EXPECT_EQ(trainer_->ReferenceStats().unconfirmed, 0u);
    EXPECT_EQ(trainer_->ContextStats().contexts, 1u);
  }
  while (trainer_->ReferenceStats().held > 0) std::this_thread::yield();
  EXPECT_EQ(trainer_->ContextStats().contexts, 0u);
  EXPECT_EQ(trainer_->address(), RuntimeOf(*trainer_).address());
}

}  // namespace
}  // namespace psd
