// Answers get lost on the way, and requests that are sent again are applied once. All workers run
// in one process, on a network that loses the messages that it is told to lose.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/psd.h"
#include "core/carrier/faulty/faulty_network.h"
#include "core/dist_autograd/context.h"
#include "core/runtime/runtime.h"
#include "core/services/gradients/gradient_service.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/services/values/value_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd::crash {
namespace {

using ::testing::ElementsAre;

// One owner and one trainer. The parameter "w" has one element, 0, and its optimizer has the
// learning rate 1.
class LostAnswersTest : public ::testing::Test {
 protected:
  LostAnswersTest() {
    network_->StartThread();
    owner_ = NewRuntime("owner", "owner:0");
    trainer_ = NewRuntime("trainer", "");
    trainer_->agent().AddPeer("owner", Must(owner_->Start()));
    EXPECT_TRUE(trainer_->Start().ok());
    w_ = Must(trainer_->values()
                  .GetOrCreate("owner", "w", Zeros({1}), /*requires_grad=*/true, patient_)
                  .Wait());
    Sgd sgd;
    sgd.lr = 1;
    optimizer_ = Must(
        trainer_->optimizer_service().Create("owner", "main", {{sgd, {w_}}}, {}, patient_).Wait());
  }
  ~LostAnswersTest() override {
    w_ = optimizer_ = rref::RRef();
    trainer_->Shutdown(absl::ZeroDuration());
    owner_->Shutdown(absl::ZeroDuration());
    network_->StopThread();
  }

  std::unique_ptr<worker::Runtime> NewRuntime(const std::string& name, const std::string& listen) {
    worker::RuntimeOptions options;
    options.name = name;
    options.listen = listen;
    options.carrier = network_->NewCarrier(name);
    options.session.reconnect_min = absl::Milliseconds(1);
    options.session.reconnect_max = absl::Milliseconds(20);
    return Must(worker::Runtime::Create(std::move(options)));
  }
  // Runs `call` and loses all answers until `applied` holds. Then cuts the connection and lets
  // answers pass again.
  template <typename T>
  T WithItsAnswerLost(const std::function<Future<T>()>& call,
                      const std::function<bool()>& applied) {
    network_->SetBlackHole("owner", "trainer", true);
    Future<T> result = call();
    while (!applied()) std::this_thread::yield();
    EXPECT_FALSE(result.IsReady());
    network_->Cut("owner", "trainer");
    network_->SetBlackHole("owner", "trainer", false);
    return Must(result.Wait());
  }
  uint64_t Version() { return Must(owner_->store().Get(w_.value_id()))->parameter->version(); }
  float Element() {
    Values values = Must(trainer_->values().Fetch({w_}, nullptr, patient_).Wait());
    return Elements(values[0].As<Variable>()->tensor())[0];
  }
  Variable PullIn(const dist_autograd::ContextPtr& context) {
    Values values = Must(trainer_->values().Fetch({w_}, context, patient_).Wait());
    return *values[0].As<Variable>();
  }
  Future<Unit> BackwardFrom(const dist_autograd::ContextPtr& context, const Variable& root) {
    return trainer_->autograd().Backward(context, {root}, {});
  }
  Future<optim::StepResult> StepIn(const dist_autograd::ContextPtr& context, GlobalId step) {
    return trainer_->optimizer_service().Step(optimizer_, {step, {context->id()}, {}}, patient_);
  }

  std::shared_ptr<carrier::FaultyNetwork> network_ = carrier::FaultyNetwork::Create();
  std::unique_ptr<worker::Runtime> owner_, trainer_;
  rref::RRef w_, optimizer_;
  rpc::CallOptions patient_{absl::ZeroDuration(), /*wait_for_ready=*/true};
};

TEST_F(LostAnswersTest, AStepIsAppliedOnce) {
  auto context = trainer_->autograd().NewContext();
  Variable w = PullIn(context);
  ASSERT_TRUE(BackwardFrom(context, Sum(w)).Wait().ok());
  const uint64_t before = Version();
  const GlobalId step = trainer_->ids().Next();
  auto result = WithItsAnswerLost<optim::StepResult>([&] { return StepIn(context, step); },
                                                     [&] { return Version() != before; });
  EXPECT_EQ(result.steps_accepted, 1u);
  EXPECT_FALSE(result.repeated) << "the session knew the answer, the optimizer was not asked";
  EXPECT_EQ(Version(), before + 1);
  EXPECT_EQ(Element(), -1);
  // The same step is sent as a new call, and the optimizer itself recognizes it.
  auto again = Must(StepIn(context, step).Wait());
  EXPECT_TRUE(again.repeated);
  EXPECT_EQ(Version(), before + 1);
}

TEST_F(LostAnswersTest, AnAssignmentIsAppliedOnce) {
  const uint64_t before = Version();
  const uint64_t version = WithItsAnswerLost<uint64_t>(
      [&] { return trainer_->values().Assign(w_, Tensor::Of<float>({1}, {5}), patient_); },
      [&] { return Version() != before; });
  EXPECT_EQ(version, before + 1);
  EXPECT_EQ(Version(), before + 1);
  EXPECT_EQ(Element(), 5);
}

TEST_F(LostAnswersTest, AGradientIsAddedOnce) {
  auto context = trainer_->autograd().NewContext();
  Variable w = PullIn(context);
  auto there = Must(owner_->autograd().Find(context->id()));
  WithItsAnswerLost<Unit>([&] { return BackwardFrom(context, Sum(w)); },
                          [&] { return there->Gradients()->size() == 1; });
  Value gradient = Must(trainer_->gradients().Fetch(context->id(), w_, patient_).Wait());
  EXPECT_THAT(Elements(gradient.As<Variable>()->tensor()), ElementsAre(1));
}

TEST_F(LostAnswersTest, AGradientFromOutsideIsAddedOnce) {
  auto context = trainer_->autograd().NewContext();
  PullIn(context);
  auto there = Must(owner_->autograd().Find(context->id()));
  WithItsAnswerLost<Unit>(
      [&] {
        return trainer_->gradients().Push(context, w_, 1, Tensor::Of<float>({1}, {3}), patient_);
      },
      [&] { return there->Gradients()->size() == 1; });
  EXPECT_THAT(Elements(Must(there->Gradient(w_.value_id())).gradient), ElementsAre(3));
}

TEST_F(LostAnswersTest, DAG_46_AReleaseThatIsLostThreeTimesArrives) {
  auto context = trainer_->autograd().NewContext();
  PullIn(context);
  EXPECT_EQ(owner_->autograd().stats().contexts, 1u);
  network_->SetBlackHole("trainer", "owner", true);
  trainer_->autograd().Release(context->id());
  for (int i = 0; i < 3; ++i) network_->Cut("owner", "trainer");
  EXPECT_EQ(owner_->autograd().stats().contexts, 1u);
  network_->SetBlackHole("trainer", "owner", false);
  network_->Cut("owner", "trainer");
  while (owner_->autograd().stats().contexts > 0) std::this_thread::yield();
}

TEST_F(LostAnswersTest, RPC_61_RREF_31_ACreationIsDoneOnce) {
  auto find = [&] { return owner_->store().List("new", {}, 10).size(); };
  rref::RRef made = WithItsAnswerLost<rref::RRef>(
      [&] { return trainer_->values().GetOrCreate("owner", "new", Zeros({3}), true, patient_); },
      [&] { return find() == 1; });
  EXPECT_EQ(find(), 1u);
  EXPECT_TRUE(trainer_->values().Fetch({made}, nullptr, patient_).Wait().ok());
}

TEST_F(LostAnswersTest, ConnectionsThatEndAtAnyMessageLoseAndDoubleNothing) {
  constexpr int kSteps = 60;
  carrier::Faults faults;
  faults.cut = 0.05;
  network_->SetFaults("owner", "trainer", faults);
  network_->SetFaults("trainer", "owner", faults);
  const uint64_t before = Version();
  for (int i = 0; i < kSteps; ++i) {
    auto context = trainer_->autograd().NewContext();
    Variable w = PullIn(context);
    ASSERT_TRUE(BackwardFrom(context, Sum(w)).Wait().ok());
    auto result = Must(StepIn(context, trainer_->ids().Next()).Wait());
    EXPECT_EQ(result.steps_accepted, static_cast<uint64_t>(i) + 1);
    trainer_->autograd().Release(context->id());
  }
  EXPECT_EQ(Version(), before + kSteps);
  EXPECT_EQ(Element(), -kSteps);
}

}  // namespace
}  // namespace psd::crash
