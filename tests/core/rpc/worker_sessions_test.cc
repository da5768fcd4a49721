#include "core/rpc/worker_sessions.h"

#include <algorithm>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/rpc/header.h"
#include "core/rpc/session_types.h"
#include "gtest/gtest.h"

namespace psd::rpc {
namespace {

constexpr absl::Time kNow = absl::UnixEpoch();

WorkerSessions::Options TrainerOptions() {
  WorkerSessions::Options options;
  options.self = {"trainer0", 7};
  return options;
}

WorkerSessions::Options OwnerOptions() {
  WorkerSessions::Options options;
  options.self = {"owner0", 9};
  return options;
}

// "trainer0" opens its session on `owner` over link 1.
void GreetFromTrainer(WorkerSessions& owner, Actions& actions) {
  owner.OnAccepted(kNow, 1, "grpc 10.0.0.7:1");
  Header hello;
  hello.kind = MessageKind::kHello;
  hello.name = "trainer0";
  hello.incarnation = 7;
  hello.protocol_version = kProtocolVersion;
  hello.sequence = 1;
  owner.OnControl(kNow, 1, hello, actions);
}

// Returns the error with which "owner0" refuses a hello of this name and version.
absl::Status Refusal(const std::string& name, uint32_t version, Incarnation incarnation = 7) {
  WorkerSessions owner(OwnerOptions());
  owner.OnAccepted(kNow, 1, "grpc 10.0.0.7:1");
  Header hello;
  hello.kind = MessageKind::kHello;
  hello.name = name;
  hello.incarnation = incarnation;
  hello.protocol_version = version;
  hello.sequence = 1;
  Actions actions;
  owner.OnControl(kNow, 1, hello, actions);
  for (const Action& action : actions) {
    const auto* sent = std::get_if<std::unique_ptr<SendControlAction>>(&action);
    if (sent != nullptr && (*sent)->header.kind == MessageKind::kRefused)
      return (*sent)->header.status;
  }
  return absl::OkStatus();
}

TEST(WorkerSessionsHello, NobodyElseGreetsAsThisWorkerItself) {
  const Incarnation own = OwnerOptions().self.incarnation;
  EXPECT_TRUE(Refusal("trainer0", kProtocolVersion).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Refusal("trainer0", kProtocolVersion, own)));
  EXPECT_TRUE(absl::IsAlreadyExists(Refusal("owner0", kProtocolVersion, own)));
}

TEST(WorkerSessionsHello, ARefusalSaysWhatToDo) {
  for (const absl::Status& refused :
       {Refusal("trainer0", kProtocolVersion + 1), Refusal("owner0", kProtocolVersion)}) {
    ASSERT_TRUE(GetDetail(refused).has_value()) << refused;
    EXPECT_FALSE(GetDetail(refused)->remedy.empty()) << refused;
  }
}

// "owner0" greets "trainer0" on the trainer's own link and is refused with `why`. Adds what the
// owner does then to `actions`.
void RefuseTheOwner(WorkerSessions& owner, const absl::Status& why, Actions& actions) {
  Header refused;
  refused.kind = MessageKind::kRefused;
  refused.name = "trainer0";
  refused.incarnation = 7;
  refused.sequence = 1;
  refused.status = why;
  owner.OnControl(kNow, 1, refused, actions);
}

template <typename A>
size_t CountOf(const Actions& actions) {
  return static_cast<size_t>(std::count_if(actions.begin(), actions.end(), [](const Action& a) {
    return std::holds_alternative<A>(a);
  }));
}

// Otherwise a worker whose table of sessions is full could call nobody.
TEST(WorkerSessionsHello, APeerThatHasNoPlaceForThisWorkerKeepsItsOwnLink) {
  WorkerSessions owner(OwnerOptions());
  Actions actions;
  GreetFromTrainer(owner, actions);
  actions.clear();
  RefuseTheOwner(owner, absl::ResourceExhaustedError("2 of 2 sessions are open"), actions);
  EXPECT_EQ(CountOf<CloseLinkAction>(actions), 0u);
  EXPECT_EQ(owner.table().sessions().begin()->second->link(), 1u);
  // The next call asks the trainer again, whether or not it waits for the session.
  CallSpec connect;
  connect.connect_only = true;
  actions.clear();
  owner.StartCall(kNow, "trainer0", connect, actions);
  ASSERT_EQ(CountOf<std::unique_ptr<SendControlAction>>(actions), 1u);
  const auto& sent = *std::get<std::unique_ptr<SendControlAction>>(actions[0]);
  EXPECT_EQ(sent.header.kind, MessageKind::kHello);
  EXPECT_EQ(sent.link, 1u);
  EXPECT_EQ(CountOf<CompleteAction>(actions), 0u);
}

TEST(WorkerSessionsHello, APeerThatTakesThisWorkerForAnotherLosesItsLink) {
  WorkerSessions owner(OwnerOptions());
  Actions actions;
  GreetFromTrainer(owner, actions);
  actions.clear();
  RefuseTheOwner(owner, absl::AlreadyExistsError("another has the name"), actions);
  EXPECT_EQ(CountOf<CloseLinkAction>(actions), 1u);
}

class WorkerSessionsTest : public ::testing::Test {
 protected:
  // Dials "owner0" as link 1 and gets its welcome. The owner has not sent a hello of its own.
  void Welcome(absl::Duration lease) {
    Actions actions;
    sessions_.AddPeer("owner0", "somewhere");
    CallSpec connect;
    connect.connect_only = true;
    sessions_.StartCall(kNow, "owner0", connect, actions);
    sessions_.OnDialed(kNow, "owner0", 1, actions);
    Header welcome;
    welcome.kind = MessageKind::kWelcome;
    welcome.name = "owner0";
    welcome.incarnation = 9;
    welcome.epoch = 3;
    welcome.sequence = 1;
    welcome.timeout_us = static_cast<uint64_t>(absl::ToInt64Microseconds(lease));
    sessions_.OnControl(kNow, 1, welcome, actions);
  }

  WorkerSessions sessions_{TrainerOptions()};
};

TEST_F(WorkerSessionsTest, WhoAnswersIsKnownFromTheWelcomeBeforeThePeersOwnHello) {
  Welcome(absl::Seconds(10));
  EXPECT_EQ(sessions_.PeerOf(1), (PeerInfo{"owner0", 9}));
}

TEST_F(WorkerSessionsTest, AShortLeaseIsRenewedThreeTimesWithinIt) {
  Welcome(absl::Milliseconds(300));
  EXPECT_LE(sessions_.NextWake(), kNow + absl::Milliseconds(100));
}

TEST_F(WorkerSessionsTest, ALeaseOfNothingKeepsNobodyBusy) {
  Welcome(absl::Microseconds(1));
  EXPECT_EQ(sessions_.callers().at("owner0")->talk_every(), absl::Milliseconds(10));
}

// The peer falls silent while calls are in flight, and every later dial fails.
TEST_F(WorkerSessionsTest, OfAPeerThatStopsAnsweringEveryCallLearnsWithinItsBound) {
  Welcome(absl::Seconds(10));
  const SessionOptions times = TrainerOptions().session;
  struct Named : Opaque {
    absl::Time done = absl::InfiniteFuture();
    absl::StatusCode code = absl::StatusCode::kOk;
  };
  std::vector<std::shared_ptr<Named>> calls;
  Actions actions;
  const auto start = [&](MethodKind kind, absl::Time deadline) {
    CallSpec spec;
    spec.kind = kind;
    spec.deadline = deadline;
    spec.body = calls.emplace_back(std::make_shared<Named>());
    sessions_.StartCall(kNow, "owner0", spec, actions);
  };
  start(MethodKind::kMutation, absl::InfiniteFuture());
  start(MethodKind::kRead, absl::InfiniteFuture());
  start(MethodKind::kRead, kNow + absl::Seconds(1));
  start(MethodKind::kMutation, kNow + times.silence + absl::Seconds(1));

  absl::Time now = kNow;
  absl::Time dial_fails = absl::InfiniteFuture();
  while (now < kNow + absl::Minutes(5)) {
    for (size_t i = 0; i < actions.size(); ++i) {
      if (std::holds_alternative<DialAction>(actions[i])) dial_fails = now + times.silence;
      if (auto* over = std::get_if<CompleteAction>(&actions[i])) {
        static_cast<Named&>(*over->body).done = now;
        static_cast<Named&>(*over->body).code = over->status.code();
      }
    }
    actions.clear();
    now = std::max(now, std::min(sessions_.NextWake(), dial_fails));
    if (now == dial_fails) {
      dial_fails = absl::InfiniteFuture();
      sessions_.OnDialFailed(now, "owner0", false, absl::UnavailableError("silence"), actions);
    }
    sessions_.Tick(now, actions);
  }
  const absl::Time gives_up = kNow + times.silence + times.retry_window;
  EXPECT_EQ(calls[0]->code, absl::StatusCode::kUnavailable);
  EXPECT_LE(calls[0]->done, gives_up);
  EXPECT_EQ(calls[1]->code, absl::StatusCode::kUnavailable);
  EXPECT_LE(calls[1]->done, gives_up);
  EXPECT_EQ(calls[2]->code, absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(calls[2]->done, kNow + absl::Seconds(1));
  EXPECT_EQ(calls[3]->code, absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(calls[3]->done, kNow + times.silence + absl::Seconds(1));
}

// A worker stalls again and again after a trainer was cut off. The stalls must not keep the
// trainer's session alive for ever.
TEST(WorkerSessionsLease, EndsInBoundedTimeHoweverOftenTheWorkerStalls) {
  WorkerSessions owner(OwnerOptions());
  Actions actions;
  GreetFromTrainer(owner, actions);
  ASSERT_EQ(owner.table().sessions().size(), 1u);

  const absl::Duration lease = OwnerOptions().session.lease;
  const absl::Duration stall = lease / 2;
  absl::Time now = kNow;
  owner.Tick(now, actions);
  while (!owner.table().sessions().empty()) {
    now += stall;
    owner.Tick(now, actions);
    ASSERT_LE(now, kNow + lease + Leniency::kMost * (stall + lease) + stall);
  }
  EXPECT_GE(now, kNow + 2 * lease) << "a stall does count in the trainer's favour";
  EXPECT_EQ(owner.probes().silence_noticed, 1u);
  EXPECT_EQ(owner.probes().lease_ended, 1u);
}

TEST(WorkerSessionsLease, AStopOfAnyLengthIsForgiven) {
  WorkerSessions owner(OwnerOptions());
  Actions actions;
  GreetFromTrainer(owner, actions);
  owner.Tick(kNow, actions);
  owner.Tick(kNow + absl::Hours(1), actions);
  EXPECT_EQ(owner.table().sessions().size(), 1u);
}

// The sender of keepalives takes no place in the table of sessions, but it takes a connection and a
// thread's attention.
TEST(WorkerSessionsLinks, ALinkOnWhichOnlyKeepalivesComeEndsAndOneWithASessionStays) {
  WorkerSessions owner(OwnerOptions());
  Actions actions;
  GreetFromTrainer(owner, actions);
  constexpr LinkId kNeverGreets = 2;
  owner.OnAccepted(kNow, kNeverGreets, "grpc 10.0.0.8:1");
  actions.clear();
  Header ping;
  ping.kind = MessageKind::kKeepalive;
  std::vector<LinkId> closed;
  for (absl::Time now = kNow; now < kNow + absl::Seconds(6); now += absl::Milliseconds(100)) {
    for (LinkId link : {LinkId{1}, kNeverGreets}) owner.OnControl(now, link, ping, actions);
    owner.Tick(now, actions);
    for (const Action& action : actions) {
      const auto* close = std::get_if<CloseLinkAction>(&action);
      if (close != nullptr && absl::StrContains(close->reason.message(), "began no session"))
        closed.push_back(close->link);
    }
    actions.clear();
    EXPECT_EQ(closed.empty(), now < kNow + SessionOptions().silence);
  }
  EXPECT_EQ(closed, std::vector<LinkId>{kNeverGreets});
}

// Two workers in lockstep: a message arrives at the other worker one step later, on the same link.
class TwoThatDialEachOther : public ::testing::Test {
 protected:
  static constexpr LinkId kFromA = 1, kFromB = 2;

  static WorkerSessions::Options Named(const std::string& name, Incarnation incarnation) {
    WorkerSessions::Options options;
    options.self = {name, incarnation};
    return options;
  }
  static void Call(WorkerSessions& from, const std::string& to, Actions& actions) {
    CallSpec connect;
    connect.connect_only = true;
    connect.wait_for_ready = true;
    from.AddPeer(to, "somewhere");
    from.StartCall(kNow, to, connect, actions);
  }
  static void Deliver(const Actions& sent, WorkerSessions& to, Actions& actions) {
    for (const Action& action : sent) {
      const auto* control = std::get_if<std::unique_ptr<SendControlAction>>(&action);
      if (control != nullptr) to.OnControl(kNow, (*control)->link, (*control)->header, actions);
    }
  }
  // Delivers messages until there are none left. Returns false if the workers keep sending.
  bool TalkItOver() {
    for (int step = 0; step < 10; ++step) {
      if (from_a_.empty() && from_b_.empty()) return true;
      Actions at_a, at_b;
      Deliver(from_a_, b_, at_b);
      Deliver(from_b_, a_, at_a);
      from_a_ = std::move(at_a);
      from_b_ = std::move(at_b);
    }
    return false;
  }
  static void ExpectOpen(const WorkerSessions& from, const std::string& to, LinkId link) {
    const CallerSession& caller = *from.callers().at(to);
    EXPECT_EQ(caller.state(), CallerSession::State::kOpen);
    EXPECT_EQ(caller.link(), link);
  }

  WorkerSessions a_{Named("a", 7)}, b_{Named("b", 9)};
  Actions from_a_, from_b_;
};

TEST_F(TwoThatDialEachOther, MeetOnTheLinkOfTheSmallerName) {
  Call(a_, "b", from_a_);
  Call(b_, "a", from_b_);
  a_.OnAccepted(kNow, kFromB, "b");
  b_.OnAccepted(kNow, kFromA, "a");
  a_.OnDialed(kNow, "b", kFromA, from_a_);
  b_.OnDialed(kNow, "a", kFromB, from_b_);
  ASSERT_TRUE(TalkItOver());
  ExpectOpen(a_, "b", kFromA);
  ExpectOpen(b_, "a", kFromA);
  // When this link breaks, both go on over the other one.
  a_.OnLinkClosed(kNow, kFromA, from_a_);
  b_.OnLinkClosed(kNow, kFromA, from_b_);
  ASSERT_TRUE(TalkItOver());
  ExpectOpen(a_, "b", kFromB);
  ExpectOpen(b_, "a", kFromB);
  EXPECT_EQ(a_.probes().resumed, 1u);
  EXPECT_EQ(b_.probes().resumed, 1u);
}

TEST_F(TwoThatDialEachOther, ALinkThatComesSecondIsNotNeeded) {
  Call(a_, "b", from_a_);
  Call(b_, "a", from_b_);
  a_.OnAccepted(kNow, kFromB, "b");
  b_.OnAccepted(kNow, kFromA, "a");
  b_.OnDialed(kNow, "a", kFromB, from_b_);
  ASSERT_TRUE(TalkItOver());
  Actions actions;
  a_.OnDialed(kNow, "b", kFromA, actions);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<CloseLinkAction>(actions[0]).link, kFromA);
  ExpectOpen(a_, "b", kFromB);
  ExpectOpen(b_, "a", kFromB);
}

}  // namespace
}  // namespace psd::rpc
