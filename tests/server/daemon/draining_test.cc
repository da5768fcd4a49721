// A daemon stops while trainers and clients wait for each other: all of them are told at once that
// nothing was applied, and the stop waits for none of them.

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/psd.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/runtime/runtime.h"
#include "core/services/status/status_service.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "proto/psd/v1/status.pb.h"
#include "server/daemon/config.h"
#include "server/daemon/server.h"
#include "tests/client/test_world.h"

namespace psd::server {
namespace {

using ::testing::HasSubstr;

const OptimizerSpec kSgd1{"sgd", {{"lr", 1}}};

void ExpectDraining(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("owner0 is draining"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("was not applied"));
  ASSERT_TRUE(GetDetail(status).has_value()) << status;
  EXPECT_FALSE(GetDetail(status)->fate_unknown) << status;
  EXPECT_FALSE(GetDetail(status)->remedy.empty());
}

void Await(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::yield();
}

// A client of the unary service.
class Client {
 public:
  explicit Client(const std::string& address)
      : stub_(v1::ParameterService::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {
    v1::OpenSessionRequest open;
    open.set_client("client0");
    v1::OpenSessionReply reply;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->OpenSession(&context, open, &reply).ok());
    session_ = reply.session();
  }

  // A step with a gradient of 1 for `parameter`, which has one element.
  grpc::Status Step(const std::string& optimizer, const std::string& parameter) {
    v1::NewContextReply opened;
    grpc::Status status = Mutate(&Stub::NewContext, v1::NewContextRequest(), &opened);
    if (!status.ok()) return status;
    v1::PushGradientRequest push;
    push.set_context(opened.context());
    push.set_parameter(parameter);
    push.mutable_gradient()->set_dtype(v1::DATA_TYPE_F32);
    push.mutable_gradient()->add_shape(1);
    const float one = 1;
    push.mutable_gradient()->set_elements(&one, sizeof(one));
    v1::PushGradientReply pushed;
    status = Mutate(&Stub::PushGradient, push, &pushed);
    if (!status.ok()) return status;
    v1::StepOptimizerRequest step;
    step.set_optimizer(optimizer);
    step.set_context(opened.context());
    v1::StepOptimizerReply stepped;
    return Mutate(&Stub::Step, step, &stepped);
  }

 private:
  using Stub = v1::ParameterService::Stub;
  template <typename Request, typename Reply>
  grpc::Status Mutate(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                      Request request, Reply* reply) {
    request.mutable_header()->set_session(session_);
    request.mutable_header()->set_sequence(++sequence_);
    grpc::ClientContext context;
    return (stub_.get()->*method)(&context, request, reply);
  }

  std::unique_ptr<Stub> stub_;
  uint64_t session_ = 0;
  uint64_t sequence_ = 0;
};

class DrainingTest : public ::testing::Test {
 protected:
  DrainingTest() {
    DaemonConfig config;
    config.name = "owner0";
    config.listen = "127.0.0.1:0";
    ServerExtensions extensions;
    EXPECT_TRUE(extensions.functions
                    .Register("late", [this](const services::FunctionCall&,
                                             Values arguments) { return Late(arguments[0]); })
                    .ok());
    server_ = Must(Server::Create(config, std::move(extensions), NewNullLogger()));
    address_ = Must(server_->Start());
    for (const char* name : {"trainer0", "trainer1", "trainer2"})
      trainers_.push_back(StartTrainer(name, {{"owner0", address_}}));
    MakeParameter(*trainers_[0], "owner0", "w", Tensor::Of<float>({1}, {10}));
  }

  // A function of the daemon that needs its argument when the daemon has begun to drain.
  absl::StatusOr<Values> Late(const Value& argument) {
    late_begun_.set_value();
    late_goes_on_.get_future().wait();
    const absl::Status usable = server_->runtime().rrefs().CheckUsable(RRef::FromValue(argument));
    if (!usable.ok()) return usable;
    return Values{};
  }

  std::unique_ptr<DistributedOptimizer> Optimizer(Worker& trainer, const std::string& name,
                                                  UpdateMode mode) {
    OptimizerSettings settings;
    settings.mode = mode;
    return Must(DistributedOptimizer::Create(
        trainer, name, kSgd1, std::vector<RRef>{Must(trainer.Lookup("owner0", "w"))}, settings));
  }
  static absl::Status Step(Worker& trainer, DistributedOptimizer& optimizer,
                           const StepOptions& options = {}) {
    PSD_ASSIGN_OR_RETURN(RRef w, trainer.Lookup("owner0", "w"));
    PSD_ASSIGN_OR_RETURN(Context context, trainer.NewContext());
    PSD_ASSIGN_OR_RETURN(std::vector<Variable> values, trainer.ToHere({w}, context));
    PSD_RETURN_IF_ERROR(context.Backward({Sum(values[0])}));
    return optimizer.Step(context, options);
  }
  std::future<absl::Status> StepAsync(Worker& trainer, DistributedOptimizer& optimizer,
                                      const StepOptions& options = {}) {
    return std::async(std::launch::async,
                      [&, options] { return Step(trainer, optimizer, options); });
  }
  void AwaitWaiting(const std::string& optimizer, size_t steps) {
    Await([&] {
      const v1::WorkerStatus status = server_->runtime().status().Collect({});
      return std::any_of(
          status.optimizers().begin(), status.optimizers().end(),
          [&](const auto& each) { return each.name() == optimizer && each.waiting() == steps; });
    });
  }
  void AwaitServing(const std::string& trainer, size_t calls) {
    Await([&] {
      const std::vector<rpc::PeerStatus> peers = server_->runtime().agent().Peers();
      return std::any_of(peers.begin(), peers.end(), [&](const rpc::PeerStatus& each) {
        return each.peer.name == trainer && each.calls_serving == calls;
      });
    });
  }
  // Returns the elements of w on the daemon.
  float W() {
    const auto entry = Must(server_->runtime().store().Lookup("w"));
    return Elements(Must(entry->parameter->Pin()).tensor)[0];
  }

  std::unique_ptr<Server> server_;
  std::string address_;
  std::vector<std::unique_ptr<Worker>> trainers_;
  std::promise<void> late_begun_, late_goes_on_;
};

TEST_F(DrainingTest, AFunctionThatRunsKeepsItsReferences) {
  const RRef mine = MakeParameter(*trainers_[0], "trainer0", "mine", Tensor::Of<float>({1}, {1}));
  auto late = std::async(std::launch::async, [&] {
    return trainers_[0]
        ->RpcSync("owner0", Function::Registered("late"),
                  {std::shared_ptr<const store::RemoteReference>(mine.body())})
        .status();
  });
  late_begun_.get_future().wait();
  std::thread stops([this] { server_->Shutdown(absl::Hours(1)); });
  Await([&] { return !trainers_[1]->Lookup("owner0", "w").ok(); });
  late_goes_on_.set_value();
  const absl::Status done = late.get();
  EXPECT_TRUE(done.ok()) << done;
  stops.join();
}

TEST_F(DrainingTest, WhoeverWaitsForOthersIsToldAtOnceThatNothingWasApplied) {
  Worker &a = *trainers_[0], &b = *trainers_[1], &c = *trainers_[2];
  const UpdateMode rounds = UpdateMode::Synchronous(3);
  const UpdateMode paced = UpdateMode::BoundedStaleness(1, UpdateMode::WhenStale::kWait);
  auto round_of_a = Optimizer(a, "rounds", rounds);
  auto measure_of_b = Optimizer(b, "measures", rounds);
  auto pace_of_b = Optimizer(b, "paced", paced), pace_of_c = Optimizer(c, "paced", paced);
  ASSERT_TRUE(Step(c, *pace_of_c).ok());
  ASSERT_TRUE(Step(b, *pace_of_b).ok());
  const float before = W();

  // One round lacks its third trainer; a round with clipping measures first; a step is ahead of
  // c's; and c meets no other trainer.
  Client client(address_);
  std::vector<std::future<absl::Status>> waiting;
  waiting.push_back(StepAsync(a, *round_of_a));
  StepOptions clip;
  clip.clip_norm = 1;
  waiting.push_back(StepAsync(b, *measure_of_b, clip));
  auto of_client = std::async(std::launch::async, [&client] { return client.Step("rounds", "w"); });
  AwaitWaiting("rounds", 2);
  AwaitWaiting("measures", 1);
  waiting.push_back(StepAsync(b, *pace_of_b));
  AwaitWaiting("paced", 1);
  waiting.push_back(std::async(std::launch::async, [&c] {
    return c.Barrier("meeting", {"trainer0", "trainer2"});
  }));
  AwaitServing("trainer2", 1);

  server_->Shutdown(absl::Hours(1));
  for (std::future<absl::Status>& each : waiting) ExpectDraining(each.get());
  const grpc::Status told = of_client.get();
  EXPECT_EQ(told.error_code(), grpc::StatusCode::UNAVAILABLE) << told.error_message();
  EXPECT_THAT(told.error_message(), HasSubstr("owner0 is draining"));
  EXPECT_THAT(told.error_message(), HasSubstr("was not applied"));
  EXPECT_EQ(W(), before);
}

// Steps of trainers and of clients come all the time. The applied steps are those that were
// reported as applied.
TEST_F(DrainingTest, UnderLoadEveryStepHasAFateThatIsKnown) {
  std::atomic<int> reported{0};
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<DistributedOptimizer>> rounds, alone;
  for (const auto& trainer : trainers_) {
    rounds.push_back(Optimizer(*trainer, "rounds", UpdateMode::Synchronous(3)));
    alone.push_back(Optimizer(*trainer, "alone", UpdateMode::Asynchronous()));
  }
  const float before = W();
  const auto run = [&](Worker& trainer, DistributedOptimizer& optimizer, int counts) {
    threads.emplace_back([&, counts] {
      absl::Status status;
      while ((status = Step(trainer, optimizer)).ok()) reported += counts;
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_FALSE(GetDetail(status).value_or(ErrorDetail{}).fate_unknown) << status;
    });
  };
  // The mean of a round of equal gradients is one step; all of its trainers report it.
  for (size_t i = 0; i < trainers_.size(); ++i) {
    run(*trainers_[i], *rounds[i], 1);
    run(*trainers_[i], *alone[i], 3);
  }
  Client client(address_);
  threads.emplace_back([&] {
    grpc::Status status;
    while ((status = client.Step("alone", "w")).ok()) reported += 3;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  });
  Await([&] { return reported > 100; });
  server_->Shutdown(absl::Hours(1));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(before - W(), static_cast<float>(reported) / 3);
}

}  // namespace
}  // namespace psd::server
