// The unary service under bad input. Each call is refused with a status that says what is wrong,
// nothing is applied, and the server goes on serving.

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/log.h"
#include "core/base/memory_budget.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/rref/rref_context.h"
#include "core/runtime/runtime.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/services/values/value_service.h"
#include "core/store/store.h"
#include "core/store/write_claims.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "server/daemon/config.h"
#include "server/daemon/server.h"

namespace psd::server {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

template <typename T>
std::string Bytes(const std::vector<T>& elements) {
  return std::string(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(T));
}

class UnaryServiceTest : public ::testing::Test {
 protected:
  explicit UnaryServiceTest(ServerExtensions extensions = {}) {
    DaemonConfig config;
    config.name = "owner0";
    config.listen = "127.0.0.1:0";
    config.memory_budget_bytes = 32 << 20;
    server_ = *Server::Create(config, std::move(extensions), NewNullLogger());
    stub_ = v1::ParameterService::NewStub(
        grpc::CreateChannel(*server_->Start(), grpc::InsecureChannelCredentials()));
    v1::OpenSessionRequest open;
    open.set_client("tester");
    v1::OpenSessionReply reply;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->OpenSession(&context, open, &reply).ok());
    session_ = reply.session();
  }

  template <typename Request, typename Reply>
  using Method = grpc::Status (v1::ParameterService::Stub::*)(grpc::ClientContext*, const Request&,
                                                              Reply*);
  // Makes a call with a new sequence number.
  template <typename Request, typename Reply>
  grpc::Status Mutate(Method<Request, Reply> method, Request request, Reply* reply = nullptr) {
    request.mutable_header()->set_session(session_);
    request.mutable_header()->set_sequence(++sequence_);
    return Call(method, request, reply);
  }
  template <typename Request, typename Reply>
  grpc::Status Call(Method<Request, Reply> method, const Request& request, Reply* reply = nullptr) {
    Reply unwanted;
    grpc::ClientContext context;
    return (stub_.get()->*method)(&context, request, reply == nullptr ? &unwanted : reply);
  }

  static v1::GetOrCreateParameterRequest Parameter(const std::string& name,
                                                   const std::vector<int64_t>& shape) {
    v1::GetOrCreateParameterRequest request;
    request.set_name(name);
    request.set_dtype(v1::DATA_TYPE_F32);
    for (int64_t extent : shape) request.add_shape(extent);
    request.set_initializer(v1::INITIALIZER_ZEROS);
    return request;
  }
  void CreateW() { ASSERT_TRUE(Mutate(&Stub::GetOrCreateParameter, Parameter("w", {2, 2})).ok()); }
  uint64_t NewContext() {
    v1::NewContextReply reply;
    EXPECT_TRUE(Mutate(&Stub::NewContext, v1::NewContextRequest(), &reply).ok());
    return reply.context();
  }
  v1::PushGradientRequest Gradient(uint64_t context, const std::vector<float>& elements) {
    v1::PushGradientRequest request;
    request.set_context(context);
    request.set_parameter("w");
    request.mutable_gradient()->set_dtype(v1::DATA_TYPE_F32);
    request.mutable_gradient()->add_shape(2);
    request.mutable_gradient()->add_shape(2);
    request.mutable_gradient()->set_elements(Bytes(elements));
    return request;
  }
  v1::GetOrCreateOptimizerRequest Optimizer(const std::string& type) {
    v1::GetOrCreateOptimizerRequest request;
    request.set_name("main");
    request.set_type(type);
    request.add_parameters("w");
    return request;
  }
  // An optimizer with a learning rate of 1.
  v1::GetOrCreateOptimizerRequest PlainSgd() {
    v1::GetOrCreateOptimizerRequest request = Optimizer("sgd");
    request.add_option_names("lr");
    request.add_option_values(1);
    return request;
  }
  static v1::StepOptimizerRequest Step(uint64_t context) {
    v1::StepOptimizerRequest request;
    request.set_optimizer("main");
    request.set_context(context);
    return request;
  }
  void CloseSession() {
    v1::CloseSessionRequest close;
    close.set_session(session_);
    EXPECT_TRUE(Call(&Stub::CloseSession, close).ok());
  }
  std::vector<float> PullW() {
    v1::PullRequest request;
    request.add_names("w");
    v1::PullReply reply;
    EXPECT_TRUE(Call(&Stub::Pull, request, &reply).ok());
    std::vector<float> elements(4);
    std::memcpy(elements.data(), reply.tensors(0).elements().data(), 16);
    return elements;
  }
  size_t NamedValues() { return server_->runtime().store().stats().named; }

  using Stub = v1::ParameterService::Stub;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::ParameterService::Stub> stub_;
  uint64_t session_ = 0;
  uint64_t sequence_ = 0;
};

TEST_F(UnaryServiceTest, SessionsAndSequences) {
  v1::OpenSessionRequest open;
  for (const std::string& client : {std::string(), std::string("a b"), std::string(128, 'x')}) {
    open.set_client(client);
    EXPECT_EQ(Call(&Stub::OpenSession, open).error_code(), StatusCode::INVALID_ARGUMENT) << client;
  }
  v1::RenewSessionRequest renew;
  renew.set_session(session_ + 1);
  EXPECT_EQ(Call(&Stub::RenewSession, renew).error_code(), StatusCode::ABORTED);

  v1::NewContextRequest request;
  EXPECT_EQ(Call(&Stub::NewContext, request).error_code(), StatusCode::ABORTED) << "no session";
  request.mutable_header()->set_session(session_);
  EXPECT_EQ(Call(&Stub::NewContext, request).error_code(), StatusCode::INVALID_ARGUMENT)
      << "sequence 0";
  request.mutable_header()->set_sequence(7);
  v1::NewContextReply first, again;
  EXPECT_TRUE(Call(&Stub::NewContext, request, &first).ok());
  EXPECT_TRUE(Call(&Stub::NewContext, request, &again).ok());
  EXPECT_EQ(first.context(), again.context()) << "a retry is answered, not applied";
  v1::DropRequest drop;
  *drop.mutable_header() = request.header();
  EXPECT_EQ(Call(&Stub::Drop, drop).error_code(), StatusCode::INVALID_ARGUMENT)
      << "another method's number";
}

TEST_F(UnaryServiceTest, ANumberThatComesAgainWithAnotherRequestIsRefused) {
  CreateW();
  ASSERT_TRUE(Mutate(&Stub::GetOrCreateOptimizer, PlainSgd()).ok());
  const uint64_t context = NewContext();
  auto request = Gradient(context, {1, 1, 1, 1});
  ASSERT_TRUE(Mutate(&Stub::PushGradient, request).ok());
  request.mutable_header()->set_session(session_);
  request.mutable_header()->set_sequence(sequence_);
  request.mutable_header()->set_acknowledged(sequence_ - 1);
  EXPECT_TRUE(Call(&Stub::PushGradient, request).ok()) << "the same, with more acknowledged";
  auto other = request;
  other.mutable_gradient()->set_elements(Bytes(std::vector<float>{1, 1, 1, 2}));
  const grpc::Status refused = Call(&Stub::PushGradient, other);
  EXPECT_EQ(refused.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("another request"));
  ASSERT_TRUE(Mutate(&Stub::Step, Step(context)).ok());
  EXPECT_EQ(PullW(), std::vector<float>(4, -1)) << "the first request, once";
}

// As a load does, which begins another life.
TEST_F(UnaryServiceTest, StepsOfASessionAreForTheLifeThatItHasJoined) {
  CreateW();
  worker::Runtime& runtime = server_->runtime();
  ASSERT_TRUE(Mutate(&Stub::GetOrCreateOptimizer, PlainSgd()).ok());
  const auto entry = *runtime.store().Lookup("main");
  const auto optimizer = optim::OptimizerOf(*entry);
  const std::vector<optim::LifeOwner> owners = {{"owner0", runtime.incarnation()}};
  const uint64_t context = NewContext();
  ASSERT_TRUE(Mutate(&Stub::PushGradient, Gradient(context, {1, 1, 1, 1})).ok());
  ASSERT_TRUE(optimizer->SetLife({{1, 1}, {}, optim::LifeStage::kLoading}).ok());
  const grpc::Status loading = Mutate(&Stub::GetOrCreateOptimizer, PlainSgd());
  EXPECT_EQ(loading.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(loading.error_message(), HasSubstr("load has not finished"));
  ASSERT_TRUE(optimizer->SetLife({{1, 2}, owners}).ok());
  const grpc::Status before = Mutate(&Stub::Step, Step(context));
  EXPECT_EQ(before.error_code(), StatusCode::FAILED_PRECONDITION) << before.error_message();
  EXPECT_THAT(before.error_message(), HasSubstr("loaded or begun afresh"));
  EXPECT_EQ(PullW(), std::vector<float>(4, 0));
  ASSERT_TRUE(Mutate(&Stub::GetOrCreateOptimizer, PlainSgd()).ok());
  EXPECT_TRUE(Mutate(&Stub::Step, Step(context)).ok());
  EXPECT_EQ(PullW(), std::vector<float>(4, -1));
}

// The part here was created, or loaded, with another one on an owner that is started again since.
TEST_F(UnaryServiceTest, AHalfOptimizerIsRefused) {
  CreateW();
  worker::Runtime& runtime = server_->runtime();
  worker::RuntimeOptions options;
  options.name = "owner1";
  options.listen = "127.0.0.1:0";
  const auto other = *worker::Runtime::Create(std::move(options));
  runtime.agent().AddPeer("owner1", *other->Start());
  ASSERT_TRUE(Mutate(&Stub::GetOrCreateOptimizer, PlainSgd()).ok());
  const auto optimizer = optim::OptimizerOf(**runtime.store().Lookup("main"));
  const optim::LifeOwner here{"owner0", runtime.incarnation()};
  ASSERT_TRUE(optimizer->SetLife({{1, 1}, {here, {"owner1", 77}}}).ok());
  const grpc::Status create = Mutate(&Stub::GetOrCreateOptimizer, PlainSgd());
  const uint64_t context = NewContext();
  ASSERT_TRUE(Mutate(&Stub::PushGradient, Gradient(context, {1, 1, 1, 1})).ok());
  const grpc::Status step = Mutate(&Stub::Step, Step(context));
  for (const grpc::Status& refused : {create, step}) {
    EXPECT_EQ(refused.error_code(), StatusCode::FAILED_PRECONDITION) << refused.error_message();
    EXPECT_THAT(refused.error_message(), HasSubstr("owner1 was restarted"));
    EXPECT_THAT(refused.error_message(), HasSubstr("--only-missing"));
  }
  EXPECT_EQ(PullW(), std::vector<float>(4, 0));
  // An owner that cannot be reached is not judged.
  ASSERT_TRUE(optimizer->SetLife({{1, 2}, {here, {"owner2", 77}}}).ok());
  EXPECT_TRUE(Mutate(&Stub::GetOrCreateOptimizer, PlainSgd()).ok());
  EXPECT_TRUE(Mutate(&Stub::Step, Step(context)).ok());
}

// A step that waits for the other trainer of its round.
class UnaryRoundTest : public UnaryServiceTest {
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
    v1::WorkerStatus status;
    while (status.clients_size() == 0 || status.clients(0).answers_remembered() < sequence_)
      EXPECT_TRUE(Call(&Stub::Status, v1::StatusRequest(), &status).ok());
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

TEST_F(UnaryRoundTest, DrainingAnswersAStepThatWaitsForOthers) {
  server_->Shutdown(absl::Hours(1));
  waits_.join();
  EXPECT_EQ(first_.error_code(), StatusCode::UNAVAILABLE) << first_.error_message();
  EXPECT_THAT(first_.error_message(), HasSubstr("owner0 is draining"));
  EXPECT_THAT(first_.error_message(), HasSubstr("the step was not applied"));
}

// Steps by -1 when `hold` returns.
class HeldOptimizer : public optim::FunctionalOptimizer {
 public:
  explicit HeldOptimizer(std::function<void()> hold) : hold_(std::move(hold)) {}
  const optim::OptimizerSpec& spec() const override { return spec_; }
  std::vector<optim::StateSlot> Slots(DType) const override { return {}; }
  absl::Status CheckDType(DType) const override { return absl::OkStatus(); }
  void Apply(const optim::StepArrays& arrays) const override {
    hold_();
    const auto* current = reinterpret_cast<const float*>(arrays.parameter);
    auto* next = reinterpret_cast<float*>(arrays.next);
    for (int64_t i = 0; i < arrays.elements; ++i) next[i] = current[i] - 1;
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
  while (refused.ok()) refused = Mutate(&Stub::NewContext, v1::NewContextRequest());
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

// A step that waits for another writer of its parameter, of an optimizer whose steps do not wait
// for other trainers.
class UnaryWriterTest : public UnaryServiceTest {
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
    absl::SleepFor(absl::Milliseconds(100));  // by then it waits for the writer
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

// Whoever creates a parameter gets its answer, even if another client drops the name meanwhile.
TEST_F(UnaryServiceTest, ACreationIsAnsweredWhoeverDropsTheNameMeanwhile) {
  std::atomic<bool> done{false};
  std::thread drops([&] {
    while (!done) server_->runtime().values().DropHere("w").IgnoreError();
  });
  for (int i = 0; i < 500; ++i) {
    const grpc::Status made = Mutate(&Stub::GetOrCreateParameter, Parameter("w", {2, 2}));
    EXPECT_TRUE(made.ok()) << made.error_message();
    if (!made.ok()) break;
  }
  done = true;
  drops.join();
}

TEST_F(UnaryServiceTest, ParametersThatCannotBe) {
  const int64_t huge = int64_t{1} << 40;
  const auto code = [&](const v1::GetOrCreateParameterRequest& request) {
    const grpc::Status status = Mutate(&Stub::GetOrCreateParameter, request);
    EXPECT_FALSE(status.error_message().empty());
    return status.error_code();
  };
  EXPECT_EQ(code(Parameter("w", {2, -1})), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code(Parameter("w", {huge, huge})), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code(Parameter("w", {0, huge, huge})), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code(Parameter("w", std::vector<int64_t>(100, 1))), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code(Parameter("", {2})), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code(Parameter("a b", {2})), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code(Parameter("big", {1 << 24})), StatusCode::RESOURCE_EXHAUSTED);
  auto request = Parameter("w", {2});
  for (int dtype : {0, 9, 99, -1}) {
    request.set_dtype(static_cast<v1::DataType>(dtype));
    const grpc::Status status = Mutate(&Stub::GetOrCreateParameter, request);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << dtype;
    EXPECT_THAT(status.error_message(), HasSubstr("dtype")) << dtype;
  }
  request.set_dtype(v1::DATA_TYPE_I64);
  EXPECT_EQ(code(request), StatusCode::INVALID_ARGUMENT) << "integers have no gradient";
  request = Parameter("w", {2});
  for (int initializer : {0, 77}) {
    request.set_initializer(static_cast<v1::Initializer>(initializer));
    EXPECT_EQ(code(request), StatusCode::INVALID_ARGUMENT) << initializer;
  }
  EXPECT_EQ(NamedValues(), 0u);

  CreateW();
  EXPECT_EQ(code(Parameter("w", {4})), StatusCode::FAILED_PRECONDITION) << "another shape";
  EXPECT_EQ(NamedValues(), 1u);
}

TEST_F(UnaryServiceTest, GradientsThatDoNotFit) {
  CreateW();
  const uint64_t context = NewContext();
  const auto refused = [&](const v1::PushGradientRequest& request, StatusCode code,
                           const std::string& part) {
    const grpc::Status status = Mutate(&Stub::PushGradient, request);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(part));
  };
  auto request = Gradient(context, {1, 2, 3, 4});
  request.mutable_gradient()->set_dtype(static_cast<v1::DataType>(42));
  refused(request, StatusCode::INVALID_ARGUMENT, "dtype 42");
  request = Gradient(context, {1, 2, 3, 4});
  request.mutable_gradient()->set_shape(0, -2);
  refused(request, StatusCode::INVALID_ARGUMENT, "-2");
  request.mutable_gradient()->set_shape(0, std::numeric_limits<int64_t>::max());
  refused(request, StatusCode::INVALID_ARGUMENT, "");
  refused(Gradient(context, {1, 2, 3}), StatusCode::INVALID_ARGUMENT, "elements has 12");
  refused(Gradient(context, {1, 2, 3, 4, 5}), StatusCode::INVALID_ARGUMENT, "elements has 20");
  request = Gradient(context, {1, 2, 3, 4});
  request.mutable_gradient()->clear_shape();
  request.mutable_gradient()->add_shape(4);
  refused(request, StatusCode::INVALID_ARGUMENT, "expected f32[2, 2], got f32[4]");
  request = Gradient(context, {1, 2});
  request.mutable_gradient()->set_dtype(v1::DATA_TYPE_F16);
  refused(request, StatusCode::INVALID_ARGUMENT, "expected f32[2, 2], got f16[2, 2]");
  request = Gradient(context, {1, 2, 3, 4});
  request.set_version(1000);
  refused(request, StatusCode::INVALID_ARGUMENT, "version 1000");
  request = Gradient(context, {1, 2, 3, 4});
  request.set_parameter("v");
  refused(request, StatusCode::NOT_FOUND, "'v'");
  refused(Gradient(context + 1, {1, 2, 3, 4}), StatusCode::NOT_FOUND, "");
  ASSERT_TRUE(Mutate(&Stub::GetOrCreateOptimizer, Optimizer("sgd")).ok());
  request = Gradient(context, {1, 2, 3, 4});
  request.set_parameter("main");
  refused(request, StatusCode::INVALID_ARGUMENT, "'main'");

  // The refused gradients have left nothing in the context.
  EXPECT_TRUE(Mutate(&Stub::PushGradient, Gradient(context, {0, 1, 2, 3})).ok());
  v1::StepOptimizerRequest step;
  step.set_optimizer("main");
  step.set_context(context);
  EXPECT_TRUE(Mutate(&Stub::Step, step).ok());
  const std::vector<float> w = PullW();
  EXPECT_EQ(w[0], 0);
  EXPECT_FLOAT_EQ(w[3], 3 * w[1]);
}

TEST_F(UnaryServiceTest, OptimizersAndStepsThatCannotBe) {
  CreateW();
  const uint64_t context = NewContext();
  const auto code = [&](const v1::GetOrCreateOptimizerRequest& request) {
    return Mutate(&Stub::GetOrCreateOptimizer, request).error_code();
  };
  grpc::Status unknown = Mutate(&Stub::GetOrCreateOptimizer, Optimizer("adm"));
  EXPECT_NE(unknown.error_code(), StatusCode::OK);
  EXPECT_THAT(unknown.error_message(), HasSubstr("adam")) << "the nearest known one";
  auto request = Optimizer("sgd");
  request.add_option_names("learning_rate");
  EXPECT_EQ(code(request), StatusCode::INVALID_ARGUMENT) << "a name without a value";
  request.add_option_values(0.1);
  EXPECT_EQ(code(request), StatusCode::INVALID_ARGUMENT) << "no such option";
  request = Optimizer("sgd");
  request.add_option_names("lr");
  request.add_option_values(std::nan(""));
  EXPECT_EQ(code(request), StatusCode::INVALID_ARGUMENT);
  request = Optimizer("sgd");
  request.clear_name();
  EXPECT_EQ(code(request), StatusCode::INVALID_ARGUMENT);
  request = Optimizer("sgd");
  request.add_parameters("v");
  EXPECT_EQ(code(request), StatusCode::NOT_FOUND);
  request = Optimizer("sgd");
  request.clear_parameters();
  EXPECT_EQ(code(request), StatusCode::INVALID_ARGUMENT) << "no parameters";
  EXPECT_EQ(NamedValues(), 1u);

  v1::StepOptimizerRequest step;
  step.set_context(context);
  step.set_optimizer("nothing");
  EXPECT_EQ(Mutate(&Stub::Step, step).error_code(), StatusCode::NOT_FOUND);
  step.set_optimizer("w");
  EXPECT_NE(Mutate(&Stub::Step, step).error_code(), StatusCode::OK) << "a parameter is none";
  ASSERT_TRUE(Mutate(&Stub::GetOrCreateOptimizer, Optimizer("sgd")).ok());
  step.set_optimizer("main");
  step.set_context(context + 1);
  EXPECT_EQ(Mutate(&Stub::Step, step).error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(PullW(), std::vector<float>(4, 0));
}

TEST_F(UnaryServiceTest, ReadsOfWhatIsNotThere) {
  CreateW();
  ASSERT_TRUE(Mutate(&Stub::GetOrCreateOptimizer, Optimizer("sgd")).ok());
  v1::PullRequest pull;
  pull.add_names("w");
  pull.add_names("x");
  EXPECT_EQ(Call(&Stub::Pull, pull).error_code(), StatusCode::NOT_FOUND);
  pull.set_names(1, "main");
  EXPECT_EQ(Call(&Stub::Pull, pull).error_code(), StatusCode::INVALID_ARGUMENT);
  for (char c : {'n', '\n', '\x01'}) {
    pull.set_names(1, std::string(10 << 20, c));
    EXPECT_EQ(Call(&Stub::Pull, pull).error_code(), StatusCode::NOT_FOUND) << "megabytes of " << c;
  }
  v1::DropRequest drop;
  drop.set_name("x");
  EXPECT_EQ(Mutate(&Stub::Drop, drop).error_code(), StatusCode::NOT_FOUND);
  v1::ReleaseContextRequest release;
  release.set_session(session_);
  release.set_context(12345);
  EXPECT_TRUE(Call(&Stub::ReleaseContext, release).ok()) << "releasing again is no error";
  release.set_session(session_ + 1);
  EXPECT_EQ(Call(&Stub::ReleaseContext, release).error_code(), StatusCode::ABORTED);
}

TEST_F(UnaryServiceTest, APullThatNamesOneValueOftenIsRefusedBeforeAnythingIsCopied) {
  ASSERT_TRUE(Mutate(&Stub::GetOrCreateParameter, Parameter("large", {1 << 18})).ok());
  MemoryAccount& transit = *server_->runtime().memory().transit();
  const size_t before = transit.used_bytes();
  v1::PullRequest pull;
  for (int i = 0; i < 60; ++i) pull.add_names("large");
  const grpc::Status refused = Call(&Stub::Pull, pull);
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  const std::string hosted = absl::StrCat(server_->runtime().store().stats().used_bytes);
  for (const std::string& number : {std::string("125829120"), std::string("33554432"), hosted}) {
    EXPECT_THAT(refused.error_message(), HasSubstr(number)) << "need, budget and use";
  }
  pull.clear_names();
  pull.add_names("large");
  v1::PullReply reply;
  ASSERT_TRUE(Call(&Stub::Pull, pull, &reply).ok());
  EXPECT_EQ(reply.tensors(0).elements().size(), size_t{1} << 20);
  while (transit.used_bytes() > before) std::this_thread::yield();
}

TEST_F(UnaryServiceTest, ARequestThatFindsNoRoomIsRefusedAndChangesNothing) {
  CreateW();
  const uint64_t context = NewContext();
  MemoryAccount& transit = *server_->runtime().memory().transit();
  const MemoryCharge full = *transit.Charge(transit.limit_bytes() - (1 << 19));
  v1::PushGradientRequest push = Gradient(context, {1, 2, 3, 4});
  push.mutable_gradient()->set_elements(std::string(1 << 20, 'x'));
  EXPECT_EQ(Mutate(&Stub::PushGradient, push).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(PullW(), std::vector<float>(4)) << "small calls find room";
}

TEST_F(UnaryServiceTest, NanAndInfinityPassUnaltered) {
  CreateW();
  auto options = Optimizer("sgd");
  options.add_option_names("lr");
  options.add_option_values(1);
  ASSERT_TRUE(Mutate(&Stub::GetOrCreateOptimizer, options).ok());
  const uint64_t context = NewContext();
  const float infinity = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(
      Mutate(&Stub::PushGradient, Gradient(context, {std::nanf(""), infinity, -infinity, 1})).ok());
  v1::StepOptimizerRequest step;
  step.set_optimizer("main");
  step.set_context(context);
  ASSERT_TRUE(Mutate(&Stub::Step, step).ok());
  const std::vector<float> w = PullW();
  EXPECT_TRUE(std::isnan(w[0]));
  EXPECT_EQ(w[1], -infinity);
  EXPECT_EQ(w[2], infinity);
  EXPECT_EQ(w[3], -1);
}

}  // namespace
}  // namespace psd::server
