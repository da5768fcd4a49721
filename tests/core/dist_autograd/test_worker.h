#pragma once

// A worker with everything that distributed autograd needs, and one method that runs named
// functions on tensors, as the worker layer of psd does. The test owns its network, executor and
// clock.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/variable.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/timer.h"
#include "core/dist_autograd/backward_options.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/dist_autograd/gradient_messages.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/value_codec.h"
#include "core/store/value.h"
#include "gtest/gtest.h"
#include "tests/core/fake_rpc.h"

namespace psd::dist_autograd {

using ContextPtr = std::shared_ptr<ContextState>;
using Variables = std::vector<Variable>;

// Runs tasks at once and counts them, or refuses them while it is full. Thread-safe.
class TestExecutor : public Executor {
 public:
  absl::Status Submit(Task task) override {
    if (full) return absl::ResourceExhaustedError("the executor of a test is full");
    ++tasks;
    task();
    return absl::OkStatus();
  }

  std::atomic<bool> full{false};
  std::atomic<int> tasks{0};
};

class TestWorker {
 public:
  using Function = std::function<Variables(TestWorker&, const ContextPtr&, const Variables&)>;
  // Is called when all but `autograd` exists.
  using MessagesOf = std::function<GradientMessages::Uses(TestWorker&)>;

  TestWorker(testing::FakeNetwork& net, const std::string& name, Incarnation incarnation,
             const MessagesOf& messages = nullptr)
      : network(net), ids(incarnation), agent(net, {name, incarnation}), timers(clock) {
    autograd =
        DistAutograd::Create(agent, ids, timers, executor, /*memory=*/nullptr,
                             messages != nullptr ? messages(*this) : GradientMessages::Uses());
    agent.RegisterMethod({"test.call", rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor,
                          [this](std::shared_ptr<rpc::ServerCall> call) { Serve(*call); }});
  }

  const std::string& name() const { return agent.self().name; }

  // Calls a function and runs the network until the answer has arrived.
  absl::StatusOr<Variables> TryCall(const ContextPtr& context, const std::string& callee,
                                    const std::string& function, const Variables& arguments) {
    std::vector<store::Value> values(arguments.begin(), arguments.end());
    rpc::Request request;
    request.method = "test.call";
    PSD_ASSIGN_OR_RETURN(request.payload, rref::EncodeValues(values, NoFork));
    request.attachments.push_back({kFunctionTag, function});
    if (context != nullptr)
      PSD_RETURN_IF_ERROR(autograd->WrapRequest(context, callee, arguments, request));
    auto reply = agent.StartCall(callee, std::move(request), {}).reply();
    network.RunUntil(reply);
    if (!reply.IsReady()) return absl::UnknownError(function + " was never answered");
    PSD_RETURN_IF_ERROR(reply.Wait());
    PSD_ASSIGN_OR_RETURN(auto results, rref::DecodeValues(
                                           reply.Wait()->payload,
                                           [&](std::vector<Tensor> tensors) {
                                             return autograd->UnwrapReply(context, *reply.Wait(),
                                                                          std::move(tensors));
                                           },
                                           NoReference));
    return rref::CollectVariables(results);
  }

  Variables Call(const ContextPtr& context, const std::string& callee, const std::string& function,
                 const Variables& arguments) {
    auto results = TryCall(context, callee, function, arguments);
    EXPECT_TRUE(results.ok()) << results.status();
    // The caller goes on with invalid variables and fails where it uses them.
    return results.ok() ? *std::move(results) : Variables(4, Variable::Invalid(results.status()));
  }

  absl::Status Backward(const ContextPtr& context, const Variables& roots,
                        const BackwardOptions& options = {}) {
    return Finish(autograd->Backward(context, roots, options));
  }

  absl::Status BackwardFrom(const ContextPtr& context, const Variables& outputs,
                            const std::vector<Tensor>& gradients,
                            const BackwardOptions& options = {}) {
    return Finish(autograd->BackwardFrom(context, outputs, gradients, options));
  }

  // Advances the clock. Timers run on a thread of their own, so they may fire after this returns.
  void PassTime(absl::Duration time) {
    clock.Advance(time);
    timers.Poll();
  }

  testing::FakeNetwork& network;
  IdSource ids;
  FakeClock clock;
  TestExecutor executor;
  testing::FakeAgent agent;
  TimerQueue timers;
  std::unique_ptr<DistAutograd> autograd;
  std::map<std::string, Function> functions;

 private:
  static constexpr uint32_t kFunctionTag = 99;

  static absl::Status NoFork(const store::RemoteReference&, rref::ForkData&) {
    return absl::InternalError("no RRefs here");
  }
  static absl::StatusOr<std::vector<store::Value>> NoReference(const rref::ForkRun&) {
    return absl::InternalError("no RRefs here");
  }

  absl::Status Finish(const Future<Unit>& done) {
    network.RunUntil(done);
    if (!done.IsReady()) return absl::UnknownError("backward hangs");
    return done.Wait().status();
  }

  void Serve(rpc::ServerCall& call) {
    ContextPtr context;
    auto results = Run(call, context);
    if (!results.ok()) return call.Reply(results.status());
    std::vector<store::Value> values(results->begin(), results->end());
    auto payload = rref::EncodeValues(values, NoFork);
    if (!payload.ok()) return call.Reply(payload.status());
    auto attachments =
        *call.attachment(kFunctionTag) == "pull"
            ? autograd->WrapLeaves(context, LeavesOf(*results), results->front().tensor().device())
            : autograd->WrapReply(context, *results);
    if (!attachments.ok()) return call.Reply(attachments.status());
    call.Reply(*std::move(payload), *std::move(attachments));
  }

  // The leaves that "pull" answers with, as a worker answers a request for parameters.
  static std::vector<LeafInfo> LeavesOf(const Variables& variables) {
    std::vector<LeafInfo> leaves;
    for (const Variable& v : variables) leaves.push_back({v.key(), v.shape(), v.dtype(), 1});
    return leaves;
  }

  absl::StatusOr<Variables> Run(rpc::ServerCall& call, ContextPtr& context) {
    const auto unwrap = [&](std::vector<Tensor> tensors) -> absl::StatusOr<Variables> {
      PSD_ASSIGN_OR_RETURN(auto received, autograd->UnwrapRequest(call, std::move(tensors)));
      context = received.context;
      return received.variables;
    };
    PSD_ASSIGN_OR_RETURN(auto arguments, rref::DecodeValues(call.payload(), unwrap, NoReference));
    auto function = functions.find(*call.attachment(kFunctionTag));
    if (function == functions.end()) return absl::NotFoundError("no such function");
    return function->second(*this, context, rref::CollectVariables(arguments));
  }
};

}  // namespace psd::dist_autograd
