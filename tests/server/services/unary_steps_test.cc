// Steps of the unary service that wait for others, or are held in their kernels: they end with
// their sessions, with draining, and when their client gives them up.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_config.h"
#include "core/rref/rref_context.h"
#include "core/runtime/runtime.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/store/store.h"
#include "core/store/write_claims.h"
#include "kernels/optim/arrays.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "server/daemon/server.h"
#include "tests/server/services/unary_fixture.h"

namespace psd::server {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

class UnaryStepsTest : public UnaryServiceTest {
 protected:
  // Returns when step number sequence_ of the session waits, so that no thread works on it.
  void AwaitStepThatWaits() {
    v1::WorkerStatus status;
    while (status.clients_size() == 0 || status.clients(0).answers_remembered() < sequence_)
      EXPECT_TRUE(Call(&Stub::Status, v1::StatusRequest(), &status).ok());
    for (auto threads = server_->runtime().executor_stats();
         threads.queued > 0 || threads.idle < threads.threads;
         threads = server_->runtime().executor_stats()) {
      std::this_thread::yield();
    }
  }
};

// A step that waits for the other trainer of its round.
class UnaryRoundTest : public UnaryStepsTest {
 protected:
  UnaryRoundTest() {
    CreateW();
    worker::Runtime& runtime = server_->runtime();
    optim::OptimizerSettings settings;
    settings.mode = optim::UpdateMode::Synchronous(2);
    const rref::RRef w = runtime.rrefs().LocalRRef(*runtime.store().Lookup("w"));
    EXPECT_TRUE(runtime.optimizer_service()
                    .Create("owner0", "main", {{{"sgd", {}}, {w}}}, settings, {})
                    .Wait()
                    .ok());
    const uint64_t context = NewContext();
    EXPECT_TRUE(Mutate(&Stub::PushGradient, Gradient(context, {1, 1, 1, 1})).ok());
    step_ = Step(context);
    step_.mutable_header()->set_session(session_);
    step_.mutable_header()->set_sequence(++sequence_);
    waits_ = std::thread([this] { first_ = Call(&Stub::Step, step_); });
    AwaitStepThatWaits();
    const grpc::Status again = Call(&Stub::Step, step_);
    EXPECT_EQ(again.error_code(), StatusCode::UNAVAILABLE);
    EXPECT_THAT(again.error_message(), HasSubstr("is being applied"));
  }
  void ExpectNotApplied() {
    waits_.join();
    EXPECT_EQ(first_.error_code(), StatusCode::ABORTED) << first_.error_message();
    EXPECT_THAT(first_.error_message(), HasSubstr("the step was not applied"));
  }

  v1::StepOptimizerRequest step_;
  grpc::Status first_;
  std::thread waits_;
};

TEST_F(UnaryRoundTest, AStepThatWaitsEndsWithItsSession) {
  CloseSession();
  grpc::Status again(StatusCode::UNAVAILABLE, "");
  while (again.error_code() == StatusCode::UNAVAILABLE) again = Call(&Stub::Step, step_);
  EXPECT_EQ(again.error_code(), StatusCode::ABORTED) << again.error_message();
  ExpectNotApplied();
  EXPECT_EQ(PullW(), std::vector<float>(4, 0));
}

TEST_F(UnaryRoundTest, AStepThatItsClientGivesUpIsInNoRound) {
  v1::NewContextRequest other;
  other.mutable_header()->set_session(session_);
  other.mutable_header()->set_sequence(sequence_ + 1);
  other.mutable_header()->set_acknowledged(sequence_);
  EXPECT_TRUE(Call(&Stub::NewContext, other).ok());
  waits_.join();
  EXPECT_EQ(first_.error_code(), StatusCode::CANCELLED) << first_.error_message();
  EXPECT_THAT(first_.error_message(), HasSubstr("given up and not applied"));
  EXPECT_EQ(PullW(), std::vector<float>(4, 0));
}

TEST_F(UnaryRoundTest, DrainingAnswersAStepThatWaitsForOthers) {
  server_->Shutdown(absl::Hours(1));
  waits_.join();
  EXPECT_EQ(first_.error_code(), StatusCode::UNAVAILABLE) << first_.error_message();
  EXPECT_THAT(first_.error_message(), HasSubstr("owner0 is draining"));
  EXPECT_THAT(first_.error_message(), HasSubstr("the step was not applied"));
}

// Changes the parameter by -1 when `hold` returns.
class HeldOptimizer : public optim::FunctionalOptimizer {
 public:
  explicit HeldOptimizer(std::function<void()> hold) : hold_(std::move(hold)) {}
  const optim::OptimizerSpec& spec() const override { return spec_; }
  std::vector<optim::StateSlot> Slots(DType) const override { return {}; }
  absl::Status CheckDType(DType) const override { return absl::OkStatus(); }
  void Apply(Stream*, const kernels::OptimBatch& batch) const override {
    hold_();
    const kernels::OptimArrays& arrays = batch.arrays[0];
    const auto* current = static_cast<const float*>(arrays.parameter);
    auto* next = static_cast<float*>(arrays.next);
    for (size_t i = 0; i < arrays.size; ++i) next[i] = current[i] - 1;
  }

 private:
  const optim::OptimizerSpec spec_{"held", {}};
  const std::function<void()> hold_;
};

// A step is held inside its kernel.
class UnaryHeldStepTest : public UnaryServiceTest {
 protected:
  UnaryHeldStepTest() : UnaryServiceTest(Held(*this)) {
    CreateW();
    EXPECT_TRUE(Mutate(&Stub::GetOrCreateOptimizer, Optimizer("held")).ok());
    const uint64_t context = NewContext();
    EXPECT_TRUE(Mutate(&Stub::PushGradient, Gradient(context, {1, 1, 1, 1})).ok());
    step_ = Step(context);
    step_.mutable_header()->set_session(session_);
    step_.mutable_header()->set_sequence(++sequence_);
    steps_ = std::thread([this] { first_ = Call(&Stub::Step, step_); });
    begun_.get_future().wait();
  }
  void Release() {
    may_end_.set_value();
    steps_.join();
  }

  v1::StepOptimizerRequest step_;
  grpc::Status first_;

 private:
  static ServerExtensions Held(UnaryHeldStepTest& test) {
    ServerExtensions extensions;
    const auto hold = [&test] {
      test.begun_.set_value();
      test.may_end_.get_future().wait();
    };
    EXPECT_TRUE(extensions.optimizers
                    .Register("held",
                              [hold](const optim::OptimizerSpec&) {
                                return std::make_unique<HeldOptimizer>(hold);
                              })
                    .ok());
    return extensions;
  }

  std::promise<void> begun_, may_end_;
  std::thread steps_;
};

TEST_F(UnaryHeldStepTest, ASessionIsNotGoneWhileItsStepIsBeingApplied) {
  CloseSession();
  for (int i = 0; i < 3; ++i) {
    const grpc::Status again = Call(&Stub::Step, step_);
    EXPECT_EQ(again.error_code(), StatusCode::UNAVAILABLE) << again.error_message();
    EXPECT_THAT(again.error_message(), HasSubstr("still being stopped or applied"));
  }
  EXPECT_EQ(PullW(), std::vector<float>(4, 0));
  Release();
  EXPECT_TRUE(first_.ok()) << first_.error_message();
  EXPECT_EQ(Call(&Stub::Step, step_).error_code(), StatusCode::ABORTED);
  EXPECT_EQ(PullW(), std::vector<float>(4, -1)) << "once, and before the session was gone";
}

TEST_F(UnaryHeldStepTest, DrainingRefusesWhatIsNewAndAnswersWhatRuns) {
  std::thread stops([this] { server_->Shutdown(absl::Hours(1)); });
  grpc::Status refused;
  while (refused.ok()) {
    absl::SleepFor(absl::Milliseconds(30));  // a session has room for 1,024 answers
    refused = Mutate(&Stub::NewContext, v1::NewContextRequest());
  }
  EXPECT_EQ(refused.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(refused.error_message(), HasSubstr("owner0 is draining"));
  EXPECT_THAT(refused.error_message(), HasSubstr("not applied"));
  EXPECT_EQ(PullW(), std::vector<float>(4, 0)) << "reads are still answered";
  v1::OpenSessionRequest open;
  open.set_client("late");
  v1::OpenSessionReply opened;
  EXPECT_EQ(Call(&Stub::OpenSession, open, &opened).error_code(), StatusCode::UNAVAILABLE);
  Release();
  stops.join();
  EXPECT_TRUE(first_.ok()) << first_.error_message();
}

// A step that waits for another writer of its parameter. The steps of its optimizer do not wait for
// other trainers.
class UnaryWriterTest : public UnaryStepsTest {
 protected:
  UnaryWriterTest() {
    CreateW();
    EXPECT_TRUE(Mutate(&Stub::GetOrCreateOptimizer, PlainSgd()).ok());
    context_ = NewContext();
    EXPECT_TRUE(Mutate(&Stub::PushGradient, Gradient(context_, {1, 1, 1, 1})).ok());
    std::promise<void> granted;
    writer_ = claims().Claim({(*server_->runtime().store().Lookup("w"))->id},
                             [&](store::WriteClaims::ClaimId) { granted.set_value(); });
    granted.get_future().wait();
    step_ = Step(context_);
    step_.mutable_header()->set_session(session_);
    step_.mutable_header()->set_sequence(++sequence_);
    waits_ = std::thread([this] { first_ = Call(&Stub::Step, step_); });
    AwaitStepThatWaits();
  }
  store::WriteClaims& claims() { return server_->runtime().store().write_claims(); }
  // Lets the step go on. Returns its answer.
  grpc::Status Release() {
    claims().Release(writer_);
    waits_.join();
    return first_;
  }

  uint64_t context_ = 0;
  v1::StepOptimizerRequest step_;

 private:
  store::WriteClaims::ClaimId writer_ = 0;
  grpc::Status first_;
  std::thread waits_;
};

TEST_F(UnaryWriterTest, AStepThatWaitsEndsWithItsSession) {
  CloseSession();
  EXPECT_EQ(Call(&Stub::Step, step_).error_code(), StatusCode::UNAVAILABLE) << "it still waits";
  const grpc::Status first = Release();
  EXPECT_EQ(first.error_code(), StatusCode::ABORTED) << first.error_message();
  EXPECT_THAT(first.error_message(), HasSubstr("the call was not applied"));
  EXPECT_EQ(Call(&Stub::Step, step_).error_code(), StatusCode::ABORTED);
  EXPECT_EQ(PullW(), std::vector<float>(4, 0));
}

TEST_F(UnaryWriterTest, AStepThatItsClientAcknowledgesWhileItWaitsIsNotApplied) {
  v1::NewContextRequest other;
  other.mutable_header()->set_session(session_);
  other.mutable_header()->set_sequence(sequence_ + 1);
  other.mutable_header()->set_acknowledged(sequence_);
  EXPECT_TRUE(Call(&Stub::NewContext, other).ok());
  const grpc::Status first = Release();
  EXPECT_EQ(first.error_code(), StatusCode::CANCELLED) << first.error_message();
  EXPECT_THAT(first.error_message(), HasSubstr("given up and not applied"));
  EXPECT_EQ(PullW(), std::vector<float>(4, 0));
}
}  // namespace
}  // namespace psd::server
