// Two workers dial each other at the same moment, over real connections with a delay.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/thread_pool.h"
#include "core/base/timer.h"
#include "core/carrier/carrier.h"
#include "core/carrier/faulty/tcp_route.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/rpc/rpc_agent.h"
#include "gtest/gtest.h"

namespace psd::rpc {
namespace {

// A worker that listens. Other workers reach it through a route with a delay.
class Worker {
 public:
  Worker(const std::string& name, Incarnation incarnation, absl::Duration one_way)
      : executor_(std::make_shared<ThreadPool>(OneThread())),
        timers_(std::make_shared<TimerQueue>()) {
    AgentOptions options;
    options.self = {name, incarnation};
    // The long times keep a busy machine from being taken for a broken network.
    options.session.silence = options.session.lease = absl::Minutes(5);
    carrier::GrpcCarrierOptions network;
    network.keepalive_timeout = absl::Minutes(5);
    options.carrier = *carrier::NewGrpcCarrier(network);
    options.executor = executor_;
    options.timers = timers_;
    agent_ = *RpcAgent::Create(std::move(options));
    agent_->RegisterMethod({"test.count", MethodKind::kMutation, RunsOn::kCarrierThread,
                            [this](std::shared_ptr<ServerCall> call) {
                              if (call->BeginApply()) ++applied_;
                              call->Reply(Payload{});
                            }});
    const std::string address = *agent_->Start("127.0.0.1:0");
    route_ = std::make_unique<carrier::TcpRoute>(address, one_way);
  }
  ~Worker() {
    agent_.reset();
    executor_->Shutdown();
    timers_->Stop();
  }

  RpcAgent& agent() { return *agent_; }
  int applied() const { return applied_; }
  // Returns how many sessions the other worker has had here, which its epoch counts.
  uint64_t sessions_of(const Worker& other) const {
    for (const PeerStatus& status : agent_->Peers()) {
      if (status.peer.name == other.agent_->self().name) return status.epoch_here;
    }
    return 0;
  }
  void Knows(const Worker& other) {
    agent_->AddPeer(other.agent_->self().name, other.route_->address());
  }
  // Makes a call with a long timeout, which only a failing test reaches.
  Call Ask(const Worker& other) {
    Request request;
    request.method = "test.count";
    CallOptions options;
    options.timeout = absl::Seconds(120);
    return agent_->StartCall(other.agent_->self().name, std::move(request), options);
  }

 private:
  static ThreadPoolOptions OneThread() {
    ThreadPoolOptions options;
    options.threads = 1;
    return options;
  }

  std::atomic<int> applied_{0};
  std::shared_ptr<ThreadPool> executor_;  // shared with the agent
  std::shared_ptr<TimerQueue> timers_;    // shared with the agent
  std::unique_ptr<RpcAgent> agent_;
  std::unique_ptr<carrier::TcpRoute> route_;
};

void Meet(absl::Duration one_way, Incarnation incarnation) {
  constexpr int kCalls = 5;
  Worker a("a", incarnation, one_way);
  Worker b("b", incarnation + 1, one_way);
  a.Knows(b);
  b.Knows(a);
  std::vector<Call> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(a.Ask(b));
    calls.push_back(b.Ask(a));
  }
  for (const Call& call : calls) {
    ASSERT_TRUE(call.reply().Wait().ok()) << call.reply().Wait().status();
  }
  EXPECT_EQ(a.applied(), kCalls);
  EXPECT_EQ(b.applied(), kCalls);
  // A worker may greet a second time, on the other's link, before its first greeting is answered.
  // Its session then begins again. No worker greets a third time.
  EXPECT_LE(a.sessions_of(b), 2u);
  EXPECT_LE(b.sessions_of(a), 2u);
}

TEST(AgentMeeting, WorkersThatDialEachOtherAtTheSameMomentMeetHoweverFarApartTheyAre) {
  Incarnation next = 0x100;
  for (int round = 0; round < 8; ++round) {
    for (int one_way_ms : {10, 20, 30}) {
      Meet(absl::Milliseconds(one_way_ms), next);
      if (HasFailure()) FAIL() << "round " << round << ", " << one_way_ms << " ms one way";
      next += 2;
    }
  }
}

}  // namespace
}  // namespace psd::rpc
