// Calls the methods of the registrar message by message, without carrier and sessions.

#include <gtest/gtest.h>

#include <atomic>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/buffer.h"
#include "core/base/clock.h"
#include "core/base/future.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/timer.h"
#include "core/rpc/message_io.h"
#include "core/rpc/registrar/peer_directory.h"
#include "core/rpc/registrar/registrar_client.h"
#include "core/rpc/rpc_agent.h"
#include "proto/psd/v1/registrar.pb.h"
#include "server/registrar/registrar_service.h"
#include "tests/core/fake_rpc.h"

namespace psd::server {
namespace {

using testing::FakeAgent;
using testing::FakeNetwork;

// The agent of the registrar. The test may also call its methods directly.
class RegistrarAgent : public FakeAgent {
 public:
  using FakeAgent::FakeAgent;
  void RegisterMethod(rpc::Method method) override {
    handlers_[method.name] = method.handler;
    FakeAgent::RegisterMethod(std::move(method));
  }
  void Serve(std::shared_ptr<rpc::ServerCall> call) { handlers_.at(call->method())(call); }

 private:
  std::map<std::string, rpc::Handler> handlers_;
};

// A call whose request the test can inspect, and which its caller may give up. Thread-safe except
// for payload().
class WatchedCall : public rpc::ServerCall {
 public:
  // The caller's session ends right after BeginApply was called `lives` times.
  WatchedCall(rpc::PeerInfo caller, std::string method, std::string request,
              int lives = std::numeric_limits<int>::max())
      : caller_(std::move(caller)),
        method_(std::move(method)),
        payload_{std::move(request), {}},
        lives_(lives) {}
  // The caller gives the call up.
  void Cancel() PSD_EXCLUDES(mutex_) {
    Task callback;
    {
      MutexLock lock(mutex_);
      cancelled_ = true;
      callback = std::exchange(on_cancel_, nullptr);
    }
    if (callback != nullptr) callback();
  }
  const rpc::PeerInfo& caller() const override { return caller_; }
  uint64_t session_epoch() const override { return 1; }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  const std::string& method() const override { return method_; }
  rpc::Payload& payload() override { return payload_; }
  const std::string* attachment(uint32_t) const override { return nullptr; }
  absl::Status Charge(size_t) override { return absl::OkStatus(); }
  void ForgetMessage() override { payload_ = {}; }
  bool cancelled() const override PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return cancelled_;
  }
  void OnCancel(Task callback) override PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    on_cancel_ = std::move(callback);
  }
  bool BeginApply() override PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return !cancelled_ && lives_-- > 0;
  }
  void OnAnswerDropped(Task) override {}
  void Reply(absl::StatusOr<rpc::Payload> answer, std::vector<rpc::Attachment>) override
      PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    EXPECT_FALSE(answer_.has_value()) << "a call is answered once";
    answer_ = std::move(answer);
  }
  bool replied() const { return answer().has_value(); }
  std::optional<absl::StatusOr<rpc::Payload>> answer() const PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return answer_;
  }

 private:
  const rpc::PeerInfo caller_;
  const std::string method_;
  rpc::Payload payload_;

  mutable Mutex mutex_;  // leaf
  int lives_ PSD_GUARDED_BY(mutex_);
  bool cancelled_ PSD_GUARDED_BY(mutex_) = false;
  Task on_cancel_ PSD_GUARDED_BY(mutex_);
  std::optional<absl::StatusOr<rpc::Payload>> answer_ PSD_GUARDED_BY(mutex_);
};

class RegistrarRequestsTest : public ::testing::Test {
 protected:
  FakeAgent& NewTrainer(const std::string& name) {
    trainers_.push_back(
        std::make_unique<FakeAgent>(network_, rpc::PeerInfo{name, trainers_.size() + 2}));
    v1::RegistrarJoinRequest join;
    join.set_role(v1::WORKER_ROLE_TRAINER);
    EXPECT_TRUE(Ask(*trainers_.back(), "registrar.join", join).Wait().ok());
    return *trainers_.back();
  }
  // Asks the registrar and delivers all messages. The answer may still be open afterwards.
  template <typename Message>
  Future<rpc::Reply> Ask(FakeAgent& asker, const std::string& method, const Message& message) {
    Future<rpc::Reply> reply =
        asker.StartCall("owner0", rpc::PlainRequest(method, message), {}).reply();
    network_.RunAll();
    return reply;
  }
  static v1::RegistrarBarrierRequest Meeting(const std::string& name,
                                             const std::vector<std::string>& members, bool gather,
                                             std::string values = "") {
    v1::RegistrarBarrierRequest request;
    request.set_name(name);
    *request.mutable_members() = {members.begin(), members.end()};
    request.set_gather(gather);
    request.set_values(std::move(values));
    return request;
  }

  FakeNetwork network_;
  RegistrarAgent agent_{network_, {"owner0", 1}};
  TimerQueue timers_;
  std::shared_ptr<Logger> logger_ = NewNullLogger();
  std::vector<std::unique_ptr<FakeAgent>> trainers_;
  RegistrarService registrar_{agent_, timers_, *logger_};
};

// The gathered values are together larger than a header may be.
TEST_F(RegistrarRequestsTest, WhatIsGatheredTravelsBesideTheHeader) {
  constexpr size_t kMembers = 17, kEach = size_t{1} << 20;
  std::vector<std::string> names;
  for (size_t i = 0; i < kMembers; ++i) names.push_back(absl::StrCat("t", 10 + i));
  for (const std::string& name : names) NewTrainer(name);
  std::vector<Future<rpc::Reply>> replies;
  for (size_t i = 0; i < kMembers; ++i) {
    const std::string values(kEach, static_cast<char>('a' + i));
    replies.push_back(
        Ask(*trainers_[i], "registrar.barrier", Meeting("g", names, /*gather=*/true, values)));
  }
  for (const Future<rpc::Reply>& future : replies) {
    ASSERT_TRUE(future.IsReady());
    const absl::StatusOr<rpc::Reply>& reply = future.Wait();
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_LT(reply->payload.header.size(), 1000u);
    ASSERT_EQ(reply->payload.buffers.size(), kMembers);
    EXPECT_EQ(reply->payload.buffers[1].view(), std::string(kEach, 'b'));
  }
}

TEST_F(RegistrarRequestsTest, ABarrierAndAnAllGatherNeverMeet) {
  FakeAgent& a = NewTrainer("a");
  FakeAgent& b = NewTrainer("b");
  const std::vector<std::string> both = {"a", "b"};
  for (const char* name : {"gather x", "all-gather x"}) {
    const auto barrier = Ask(a, "registrar.barrier", Meeting(name, both, /*gather=*/false));
    const auto gather = Ask(b, "registrar.barrier", Meeting("x", both, /*gather=*/true));
    EXPECT_FALSE(barrier.IsReady() || gather.IsReady()) << name;
    network_.EndSessionsOf("a");
    network_.RunAll();
    v1::RegistrarJoinRequest join;
    join.set_role(v1::WORKER_ROLE_TRAINER);
    ASSERT_TRUE(Ask(a, "registrar.join", join).Wait().ok());
  }
}

TEST_F(RegistrarRequestsTest, ACallThatWaitsHoldsNothingOfItsRequest) {
  NewTrainer("a");
  NewTrainer("b");
  const auto call =
      std::make_shared<WatchedCall>(trainers_[0]->self(), "registrar.barrier",
                                    Meeting("x", {"a", "b"}, /*gather=*/false).SerializeAsString());
  agent_.Serve(call);
  EXPECT_FALSE(call->replied());
  EXPECT_TRUE(call->payload().header.empty());
}

// The notice of the loss is handled before the answer of the join.
TEST_F(RegistrarRequestsTest, WhoJoinedInASessionThatIsLostMeanwhileJoinsAgain) {
  FakeAgent agent(network_, {"a", 2});
  rpc::RegistrarClient client(agent, timers_, *logger_);
  rpc::JoinOptions options;
  options.registrar = "owner0";
  const auto joined = client.Join(options, {});
  ASSERT_TRUE(network_.RunOne());
  EXPECT_EQ(registrar_.World().size(), 1u);
  network_.EndSessionsOf("a");
  EXPECT_TRUE(registrar_.World().empty());
  network_.RunAll();
  ASSERT_TRUE(joined.IsReady());
  while (registrar_.World().empty()) network_.RunAll();
  client.Stop();
}

TEST_F(RegistrarRequestsTest, DrainingAnswersWhoWaitsAndRefusesWhoComesLate) {
  FakeAgent& a = NewTrainer("a");
  NewTrainer("b");
  const auto meeting = Meeting("x", {"a", "b"}, /*gather=*/false);
  const auto early = Ask(a, "registrar.barrier", meeting);
  EXPECT_FALSE(early.IsReady());
  agent_.BeginDraining();
  const auto late = Ask(a, "registrar.barrier", meeting);
  network_.RunAll();
  for (const Future<rpc::Reply>& each : {early, late}) {
    ASSERT_TRUE(each.IsReady());
    const absl::Status status = each.Wait().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "the barrier was not applied")) << status;
    EXPECT_FALSE(GetDetail(status)->remedy.empty());
  }
}

// The notice about the session's end found no member yet, so nobody else would remove this one.
TEST_F(RegistrarRequestsTest, AJoinIsUndoneIfItsSessionEndsMeanwhile) {
  v1::RegistrarJoinRequest join;
  join.set_role(v1::WORKER_ROLE_TRAINER);
  const auto call = std::make_shared<WatchedCall>(rpc::PeerInfo{"a", 5}, "registrar.join",
                                                  join.SerializeAsString(), /*lives=*/1);
  agent_.Serve(call);
  ASSERT_TRUE(call->replied());
  EXPECT_EQ(call->answer()->status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(registrar_.World().empty());
}

// One member gives the all-gather up while the last member arrives, a bit later in each round.
// Either the all-gather is complete, or all others still wait: no answer lacks a member.
TEST_F(RegistrarRequestsTest, AnAllGatherThatIsGivenUpAsTheLastArrivesHasAllMembersOrNone) {
  constexpr size_t kMembers = 64;  // the more there are, the longer it takes to answer all
  constexpr int kRounds = 400;
  std::vector<std::string> names;
  for (size_t i = 0; i < kMembers; ++i) names.push_back(absl::StrCat("t", 10 + i));
  for (const std::string& name : names) NewTrainer(name);
  for (int round = 0; round < kRounds; ++round) {
    const std::string request =
        Meeting(absl::StrCat("x", round), names, /*gather=*/true, "values").SerializeAsString();
    std::vector<std::shared_ptr<WatchedCall>> calls;
    for (const auto& trainer : trainers_) {
      calls.push_back(std::make_shared<WatchedCall>(trainer->self(), "registrar.barrier", request));
      if (calls.size() > 1) agent_.Serve(calls.back());
    }
    std::atomic<int> ready{0};
    const auto together = [&ready] {
      ++ready;
      while (ready < 2) std::this_thread::yield();
    };
    std::thread gives_up([&] {
      together();
      for (std::atomic<int> spins{0}; spins < 20 * round; ++spins) {
      }
      calls.back()->Cancel();
    });
    together();
    agent_.Serve(calls.front());
    gives_up.join();
    ASSERT_TRUE(calls.back()->replied());
    if (calls.front()->replied()) {
      ASSERT_TRUE(calls.front()->answer()->ok()) << calls.front()->answer()->status();
      ASSERT_EQ((*calls.front()->answer())->buffers.size(), kMembers) << "a member is missing";
    } else {
      EXPECT_EQ(calls.back()->answer()->status().code(), absl::StatusCode::kCancelled);
      for (const auto& call : calls) call->Cancel();
    }
  }
}

TEST_F(RegistrarRequestsTest, TheWorldTravelsBesideTheHeader) {
  const auto reply = Ask(NewTrainer("a"), "registrar.world", v1::RegistrarWorldRequest());
  ASSERT_TRUE(reply.Wait().ok());
  EXPECT_TRUE(reply.Wait()->payload.header.empty());
  ASSERT_EQ(reply.Wait()->payload.buffers.size(), 1u);
  const auto world = rpc::AskWorld(*trainers_[0], "owner0", {});
  network_.RunAll();
  ASSERT_TRUE(world.Wait().ok()) << world.Wait().status();
  ASSERT_EQ(world.Wait()->members.size(), 1u);
  EXPECT_EQ(world.Wait()->members[0].name, "a");
}

TEST_F(RegistrarRequestsTest, WhoCannotBeFoundIsAnErrorWithARemedy) {
  FakeAgent& asker = NewTrainer("asker");
  NewTrainer("silent");
  rpc::PeerDirectory directory(asker);
  const auto remedy_for = [&](const std::string& worker) {
    const Future<Unit> found = directory.Find(worker);
    network_.RunAll();
    return GetDetail(found.Wait().status()).value_or(ErrorDetail{}).remedy;
  };
  EXPECT_EQ(remedy_for("silent"), "name one, or connect the two");
  directory.SetRegistrar("owner0");
  EXPECT_EQ(remedy_for("silent"), "let one of the two listen");
}

// Every owner must have an address, so that a save can ask all of them and skips none silently.
TEST_F(RegistrarRequestsTest, AnOwnerHasAnAddress) {
  FakeAgent owner(network_, {"owner1", 9});
  v1::RegistrarJoinRequest join;
  join.set_role(v1::WORKER_ROLE_OWNER);
  const absl::Status refused = Ask(owner, "registrar.join", join).Wait().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(refused.message(), "owner1")) << refused;
  EXPECT_FALSE(GetDetail(refused)->remedy.empty());
  join.set_address("10.0.0.1:7071");
  EXPECT_TRUE(Ask(owner, "registrar.join", join).Wait().ok());
}

// A save of a job whose owner was killed leaves nothing out silently, even after the lease.
TEST_F(RegistrarRequestsTest, AnOwnerThatWasLostIsAbsentAndOneThatSaidGoodbyeIsNot) {
  const auto join_as_owner = [&](FakeAgent& owner) {
    v1::RegistrarJoinRequest join;
    join.set_role(v1::WORKER_ROLE_OWNER);
    join.set_address("10.0.0.1:7071");
    EXPECT_TRUE(Ask(owner, "registrar.join", join).Wait().ok());
  };
  FakeAgent& asker = NewTrainer("asker");
  const auto absent = [&] {
    const auto world = rpc::AskWorld(asker, "owner0", {});
    network_.RunAll();
    return world.Wait().ok() ? world.Wait()->absent_owners : std::vector<std::string>{"?"};
  };
  FakeAgent orderly(network_, {"orderly", 8}), killed(network_, {"killed", 9});
  join_as_owner(orderly);
  join_as_owner(killed);
  network_.EndSessionsOf("orderly", /*goodbye=*/true);
  network_.EndSessionsOf("killed");
  EXPECT_EQ(absent(), std::vector<std::string>{"killed"});
  join_as_owner(killed);
  EXPECT_EQ(absent(), std::vector<std::string>{});
}

// Counts how often a worker says that it could not join.
class JoinLogger : public Logger {
 public:
  bool Enabled(LogLevel) const override { return true; }
  void Log(LogLevel, absl::string_view event, absl::string_view,
           std::initializer_list<LogField>) override {
    failures_ += event == "registrar_join_failed";
  }
  int failures() const { return failures_; }

 private:
  std::atomic<int> failures_{0};
};

TEST_F(RegistrarRequestsTest, AWorkerThatCannotJoinSaysSoAgainAndAgain) {
  FakeClock clock;
  TimerQueue timers(clock);
  JoinLogger logger;
  FakeAgent agent(network_, {"a", 2});
  rpc::RegistrarClient client(agent, timers, logger);
  rpc::JoinOptions options;
  options.registrar = "owner0";
  options.role = rpc::WorkerRole::kOwner;  // it has no address
  client.KeepJoined(options);
  while (logger.failures() < 3) {
    network_.RunAll();
    clock.Advance(absl::Seconds(1));
    timers.Poll();
  }
  client.Stop();
  timers.Stop();
}

TEST_F(RegistrarRequestsTest, AnAddressIsNoLongerThanAHostMayBe) {
  FakeAgent long_winded(network_, {"long", 9});
  v1::RegistrarJoinRequest join;
  join.set_role(v1::WORKER_ROLE_TRAINER);
  join.set_address(std::string(9 << 20, 'a') + ":1");
  const absl::Status refused = Ask(long_winded, "registrar.join", join).Wait().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_LT(refused.message().size(), 1000u);
  EXPECT_TRUE(absl::StrContains(refused.message(), "at most 253 bytes")) << refused;
}

}  // namespace
}  // namespace psd::server
