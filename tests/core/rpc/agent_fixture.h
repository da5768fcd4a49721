#pragma once

// Agents on a simulated faulty network in one process.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/executor.h"
#include "core/base/memory_budget.h"
#include "core/base/thread_pool.h"
#include "core/base/timer.h"
#include "core/carrier/carrier.h"
#include "core/carrier/faulty/faulty_network.h"
#include "core/rpc/rpc_agent.h"
#include "gtest/gtest.h"
#include "tests/core/picky_carrier.h"

namespace psd::rpc {

// A worker with an agent and threads of its own.
struct TestWorker {
  std::string name;
  Incarnation incarnation = 0;
  std::shared_ptr<carrier::Carrier> carrier;  // shared with the agent
  std::shared_ptr<ThreadPool> executor;       // shared with the agent
  std::shared_ptr<TimerQueue> timers;         // shared with the agent
  std::unique_ptr<RpcAgent> agent;

  ~TestWorker() {
    agent.reset();
    executor->Shutdown();
    timers->Stop();
  }
};

class AgentTest : public ::testing::Test {
 protected:
  AgentTest() : network_(carrier::FaultyNetwork::Create()) { network_->StartThread(); }
  ~AgentTest() override { network_->StopThread(); }

  // Makes a worker that is not started yet. Its timeouts are short, so that tests wait little.
  // `process` is its name in the network, if that is not `name`.
  std::unique_ptr<TestWorker> NewWorker(const std::string& name, int threads = 2,
                                        const std::string& process = "") {
    auto worker = std::make_unique<TestWorker>();
    worker->name = name;
    worker->incarnation = next_incarnation_++;
    worker->carrier = std::make_shared<testing::PickyCarrier>(
        network_->NewCarrier(process.empty() ? name : process, limits_), rules_);
    ThreadPoolOptions pool;
    pool.threads = threads;
    worker->executor = std::make_shared<ThreadPool>(pool);
    worker->timers = std::make_shared<TimerQueue>();
    AgentOptions options;
    options.self = {name, worker->incarnation};
    options.session = times_;
    options.carrier = worker->carrier;
    options.executor = worker->executor;
    options.timers = worker->timers;
    options.memory = memory_;
    worker->agent = *RpcAgent::Create(std::move(options));
    return worker;
  }

  // Adds a method that answers with the payload of its request.
  static void AddEcho(TestWorker& worker, const std::string& name = "test.echo",
                      RunsOn runs_on = RunsOn::kCarrierThread) {
    worker.agent->RegisterMethod(
        {name, MethodKind::kRead, runs_on,
         [](std::shared_ptr<ServerCall> call) { call->Reply(std::move(call->payload())); }});
  }

  static Request Ask(const std::string& method, std::string header = "") {
    Request request;
    request.method = method;
    request.payload.header = std::move(header);
    return request;
  }

  static Request Read(const std::string& method, std::string header = "") {
    Request request = Ask(method, std::move(header));
    request.kind = MethodKind::kRead;
    return request;
  }

  static absl::StatusOr<std::string> Sync(TestWorker& from, const std::string& to, Request request,
                                          const CallOptions& options = {}) {
    Call call = from.agent->StartCall(to, std::move(request), options);
    const absl::StatusOr<Reply>& reply = call.reply().Wait();
    if (!reply.ok()) return reply.status();
    return reply->payload.header;
  }

  SessionOptions times_ = [] {
    SessionOptions times;
    times.lease = absl::Milliseconds(1500);
    times.retry_window = absl::Seconds(5);
    times.reconnect_min = absl::Milliseconds(5);
    times.reconnect_max = absl::Milliseconds(50);
    times.silence = absl::Milliseconds(500);
    return times;
  }();
  carrier::Limits limits_;                           // of workers that are made from now on
  std::shared_ptr<MemoryAccount> memory_;            // of workers that are made from now on
  testing::PickyRules rules_;                        // of workers that are made from now on
  std::shared_ptr<carrier::FaultyNetwork> network_;  // shared with its carriers
  Incarnation next_incarnation_ = 0x100;
};

}  // namespace psd::rpc
