// The unary service under bad input. Each call is refused with a status that says what is wrong,
// nothing is applied, and the server goes on serving.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/memory_budget.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/runtime/runtime.h"
#include "core/services/values/value_service.h"
#include "core/store/store.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "server/daemon/server.h"
#include "tests/server/services/unary_fixture.h"

namespace psd::server {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

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

// Begins another life, as a load does.
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

// The part on this owner was created, or loaded, together with a part on an owner that has been
// restarted since.
TEST_F(UnaryServiceTest, AHalfOptimizerIsRefused) {
  CreateW();
  worker::Runtime& runtime = server_->runtime();
  worker::RuntimeOptions options;
  options.name = "owner1";
  options.listen = "127.0.0.1:0";
  const auto other = *worker::Runtime::Create(std::move(options));
  runtime.agent().AddPeer("owner1", *other->Start());
  ASSERT_TRUE(runtime.agent().Connect("owner1", {}).Wait().ok());
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

// The client that creates a parameter gets its answer, even if another client drops the name
// meanwhile.
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
