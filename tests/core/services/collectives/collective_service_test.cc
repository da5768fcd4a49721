// A worker's answers to messages of groups that it is not in, of strangers, and of ranks that break
// the protocol.

#include "core/services/collectives/collective_service.h"
#include "core/services/collectives/ended_groups.h"

#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/clock.h"
#include "core/base/future.h"
#include "core/base/status.h"
#include "core/base/timer.h"
#include "core/carrier/carrier.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/message_io.h"
#include "core/rpc/rpc_agent.h"
#include "core/runtime/runtime.h"
#include "core/services/collectives/collective_codec.h"
#include "core/services/collectives/collective_group.h"
#include "core/services/collectives/group_ledger.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/collective.pb.h"
#include "tests/client/test_world.h"
#include "tests/core/picky_carrier.h"
#include "tests/core/services/collectives/made_up_rank.h"

namespace psd::services {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kEpoch = 3;  // of the session of made-up calls

CollectiveCall AllReduce(int64_t elements) {
  CollectiveCall call;
  call.operation = Operation::kAllReduce;
  call.reduction = Reduction::kSum;
  call.form = TensorForm{DType::kF32, {elements}};
  return call;
}

// A call whose caller has stopped waiting, so that nobody may apply it.
class GivenUpCall : public rpc::ServerCall {
 public:
  const rpc::PeerInfo& caller() const override { return caller_; }
  uint64_t session_epoch() const override { return kEpoch; }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  const std::string& method() const override { return method_; }
  rpc::Payload& payload() override { return payload_; }
  const std::string* attachment(uint32_t) const override { return nullptr; }
  absl::Status Charge(size_t) override { return absl::OkStatus(); }
  void ForgetMessage() override {}
  bool cancelled() const override { return true; }
  void OnCancel(Task) override {}
  bool BeginApply() override { return false; }
  void OnAnswerDropped(Task) override {}
  void Reply(absl::StatusOr<rpc::Payload> result, std::vector<rpc::Attachment>) override {
    replies.push_back(result.status().code());
  }

  std::vector<absl::StatusCode> replies;

 private:
  const rpc::PeerInfo caller_{"b", 1};
  const std::string method_ = kTakeTensor.info.name;
  rpc::Payload payload_;
};

// b is rank 1 of a's group, c is a stranger.
class CollectiveServiceTest : public MadeUpRankTest {
 protected:
  CollectiveServiceTest() : c_("c") { Connect(c_, a_); }

  template <typename Message>
  absl::Status Send(TestOwner& from, const rpc::Declared<Message, Unit>& method,
                    const Message& message, const std::string& data = "") {
    rpc::Request request;
    request.payload = rpc::PlainPayload(message);
    if (!data.empty()) request.payload.buffers.push_back(Buffer::FromString(data));
    return rpc::Ask(from.runtime().agent(), method, {"a"}, std::move(request), {}).Wait().status();
  }
  static v1::CollectivePiece Piece(uint64_t number, uint32_t phase, uint32_t index) {
    v1::CollectivePiece message;
    message.set_generation(kGeneration);
    message.set_number(number);
    message.set_phase(phase);
    message.set_index(index);
    return message;
  }

  // Makes the parts of a, b and c in a group of these three. Only a watches the others.
  std::vector<std::shared_ptr<CollectiveGroup>> MakeThree() {
    GroupMembers members;
    members.name = "three";
    members.generation = kGeneration;
    for (TestOwner* each : {&a_, &b_, &c_})
      members.workers.push_back({each->runtime().name(), each->runtime().incarnation()});
    std::vector<std::shared_ptr<CollectiveGroup>> parts;
    for (TestOwner* each : {&a_, &b_, &c_}) {
      parts.push_back(Must(each->runtime().collectives().Make(members)));
      ++members.rank;
    }
    parts[0]->Watch();
    return parts;
  }
  // Starts a call to which every rank brings one number.
  static Future<CollectiveGroup::Tensors> StartSmall(CollectiveGroup& group, float number) {
    return group.Start(AllReduce(1), {Must(Tensor::Full({1}, DType::kF32, number))},
                       absl::Seconds(60));
  }

  // Makes the parts of `first` and b in a group of these two.
  std::vector<std::shared_ptr<CollectiveGroup>> MakeTwo(TestOwner& first) {
    Connect(first, b_);
    GroupMembers members;
    members.name = "two";
    members.generation = kGeneration + 1;
    std::vector<std::shared_ptr<CollectiveGroup>> parts;
    for (TestOwner* each : {&first, &b_})
      members.workers.push_back({each->runtime().name(), each->runtime().incarnation()});
    for (TestOwner* each : {&first, &b_}) {
      parts.push_back(Must(each->runtime().collectives().Make(members)));
      ++members.rank;
    }
    for (const auto& part : parts) part->Watch();
    return parts;
  }
  // Options of a worker whose links keep `rules`.
  static worker::RuntimeOptions Picky(testing::PickyRules rules) {
    worker::RuntimeOptions options;
    options.carrier = std::make_shared<testing::PickyCarrier>(Must(carrier::NewGrpcCarrier({})),
                                                              std::move(rules));
    return options;
  }
  // The error of a because of what b has sent.
  static void ExpectNamesSender(const absl::Status& status) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("group 'ranks': rank 1 (b) sent rank 0 (a) what no rank of this version "
                          "sends"));
    EXPECT_EQ(GetDetail(status)->worker, "b");
  }

  TestOwner c_;
};

TEST_F(CollectiveServiceTest, AnotherGenerationIsFenced) {
  v1::CollectiveEnter message = Enter(0, AllReduce(1));
  message.set_generation(kGeneration + 1);
  const absl::Status refused = Send(b_, kEnterCall, message, "0123");
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a is not in generation"));
  // So is this one, once the group is gone.
  group_.reset();
  EXPECT_TRUE(absl::IsFailedPrecondition(Send(b_, kEnterCall, Enter(0, AllReduce(1)), "0123")));
}

// A rank that asks late must name the rank at fault, and not the one that let its group go first.
TEST_F(CollectiveServiceTest, AGroupThatHasFailedSaysWhyAfterItsUserHasLetItGo) {
  group_->GiveUp(absl::InternalError("its disk burns"));
  group_.reset();
  EXPECT_TRUE(Send(b_, kEnterCall, Enter(0, AllReduce(1)), "0123").ok());
  other_->Watch();
  const absl::Status failed = StartSmall(*other_, 0).Wait().status();
  EXPECT_THAT(std::string(failed.message()), HasSubstr("rank 0 (a) cannot go on: its disk burns"));
}

// A rank that needs nothing more leaves before another one has begun to watch it. That is no fault.
TEST_F(CollectiveServiceTest, ARankThatHasLeftSaysSoAfterItsUserHasLetTheGroupGo) {
  group_->Leave(absl::ZeroDuration());
  group_.reset();
  other_->Watch();
  EXPECT_TRUE(Send(b_, kEnterCall, Enter(0, AllReduce(1)), "0123").ok());  // behind the watch
  EXPECT_TRUE(other_->failure().ok()) << other_->failure();
  const absl::Status left = StartSmall(*other_, 0).Wait().status();
  EXPECT_THAT(std::string(left.message()), HasSubstr("rank 0 (a) has left before call 0"));
}

TEST_F(CollectiveServiceTest, OnlySoManyEndedGroupsAreKept) {
  const std::weak_ptr<CollectiveGroup> first = group_;
  group_->GiveUp(absl::InternalError("the first"));
  GroupMembers members = group_->members();
  group_.reset();
  for (size_t made = 1; made < EndedGroups::kMostGroups; ++made) {
    ++members.generation;
    Must(a_.runtime().collectives().Make(members))->GiveUp(absl::InternalError("another"));
  }
  EXPECT_FALSE(first.expired());
  ++members.generation;
  Must(a_.runtime().collectives().Make(members))->GiveUp(absl::InternalError("the last"));
  EXPECT_TRUE(first.expired());
}

TEST_F(CollectiveServiceTest, StrangersAreRefused) {
  EXPECT_TRUE(absl::IsPermissionDenied(Send(c_, kEnterCall, Enter(0, AllReduce(1)), "0123")));
  EXPECT_TRUE(absl::IsPermissionDenied(Send(c_, kSendPiece, Piece(0, 0, 0), "0123")));
  EXPECT_TRUE(absl::IsPermissionDenied(Send(a_, kEnterCall, Enter(0, AllReduce(1)), "0123")))
      << "a rank does not send to itself";
  EXPECT_TRUE(group_->failure().ok());
}

TEST_F(CollectiveServiceTest, WrongMessagesOfARankAreRefusedAndTheGroupGoesOn) {
  const auto refused = [](const absl::Status& status) { return absl::IsInvalidArgument(status); };
  CollectiveCall large;  // to which only b brings data
  large.operation = Operation::kGather;
  large.form = TensorForm{DType::kF32, {400'000}};
  EXPECT_TRUE(refused(Send(b_, kEnterCall, Enter(0, AllReduce(1)), "012"))) << "not a float";
  EXPECT_TRUE(refused(Send(b_, kEnterCall, Enter(0, AllReduce(1))))) << "without its data";
  EXPECT_TRUE(refused(Send(b_, kEnterCall, Enter(0, large), "0123"))) << "too early";
  EXPECT_TRUE(refused(Send(b_, kEnterCall, Enter(1000, AllReduce(1)), "0123"))) << "too far ahead";
  CollectiveCall unknown = AllReduce(1);
  unknown.operation = static_cast<Operation>(99);
  EXPECT_TRUE(refused(Send(b_, kEnterCall, Enter(0, unknown), "0123")));
  EXPECT_TRUE(refused(Send(b_, kSendPiece, Piece(0, 0, 0), "0123"))) << "nobody has made the call";

  const Tensor ones = Must(Tensor::Full({400'000}, DType::kF32, 1));
  const auto gathered = group_->Start(large, {ones}, absl::Seconds(60));
  EXPECT_TRUE(refused(Send(b_, kSendPiece, Piece(0, 0, 0), "0123"))) << "not made by this rank";
  EXPECT_TRUE(Send(b_, kEnterCall, Enter(0, large)).ok());
  EXPECT_TRUE(refused(Send(b_, kEnterCall, Enter(0, large)))) << "twice";
  EXPECT_TRUE(refused(Send(b_, kSendPiece, Piece(0, 0, 0), "0123"))) << "of another size";
  EXPECT_TRUE(refused(Send(b_, kSendPiece, Piece(0, 2, 0), "0123")));
  EXPECT_TRUE(refused(Send(b_, kSendPiece, Piece(0, 0, 99), "0123")));
  EXPECT_FALSE(gathered.IsReady());
  EXPECT_TRUE(group_->failure().ok());
  EXPECT_TRUE(Send(b_, kSendPiece, Piece(0, 0, 0), std::string(1'600'000, '\0')).ok());
  EXPECT_EQ(Must(gathered.Wait()).size(), 2u);
}

TEST_F(CollectiveServiceTest, CallsThatWaitKeepNoMessageAndAreNotMadeTwice) {
  v1::CollectiveTake take;
  take.set_generation(kGeneration);
  rpc::Request fat;
  fat.payload = rpc::PlainPayload(take);
  fat.payload.buffers.push_back(Buffer::FromString(std::string(1000, 'x')));
  EXPECT_TRUE(absl::IsInvalidArgument(
      rpc::Ask(b_.runtime().agent(), kTakeTensor, {"a"}, std::move(fat), {}).Wait().status()));
  v1::CollectiveWatch watch;
  watch.set_generation(kGeneration);
  const auto first = rpc::Ask(b_.runtime().agent(), kWatchRank, {"a"}, watch, {});
  const auto second = rpc::Ask(b_.runtime().agent(), kWatchRank, {"a"}, watch, {});
  EXPECT_TRUE(absl::IsInvalidArgument(first.Wait().status())) << "a second one came";
  group_->Leave(absl::ZeroDuration());
  EXPECT_TRUE(Must(second.Wait()).left());
}

// The notice that an earlier session has ended may come after the rank has met this one again.
TEST_F(CollectiveServiceTest, OnlyTheEndOfTheSessionInWhichARankWatchesFailsTheGroup) {
  group_->SessionEnded(1, kEpoch - 2);
  group_->ServeWatch(1, rpc::Answer<v1::CollectiveEnd>(std::make_shared<GivenUpCall>()));
  group_->SessionEnded(1, kEpoch - 1);
  EXPECT_TRUE(group_->failure().ok()) << group_->failure();
  group_->SessionEnded(1, kEpoch);
  ASSERT_TRUE(absl::IsUnavailable(group_->failure())) << group_->failure();
  EXPECT_EQ(GetDetail(group_->failure())->worker, "b");
}

// The watch is served on one thread while the end of its session comes on another.
TEST_F(CollectiveServiceTest, AWatchInASessionThatHasEndedFailsTheGroup) {
  group_->SessionEnded(1, kEpoch);
  EXPECT_TRUE(group_->failure().ok()) << "the rank has not watched yet";
  group_->ServeWatch(1, rpc::Answer<v1::CollectiveEnd>(std::make_shared<GivenUpCall>()));
  ASSERT_TRUE(absl::IsUnavailable(group_->failure())) << group_->failure();
  EXPECT_EQ(GetDetail(group_->failure())->worker, "b");
}

TEST_F(CollectiveServiceTest, TheEndOfARankThatWatchesFailsTheGroup) {
  v1::CollectiveWatch watch;
  watch.set_generation(kGeneration);
  const auto watched = rpc::Ask(b_.runtime().agent(), kWatchRank, {"a"}, watch, {});
  // A later call of b is answered when a has the watch.
  EXPECT_TRUE(absl::IsInvalidArgument(Send(b_, kEnterCall, Enter(0, AllReduce(1)))));
  b_.runtime().agent().Shutdown(absl::ZeroDuration());
  const absl::Time until = absl::Now() + absl::Seconds(120);
  while (group_->failure().ok() && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsUnavailable(group_->failure())) << group_->failure();
  EXPECT_THAT(std::string(group_->failure().message()), HasSubstr("its session here has ended"));
}

TEST_F(CollectiveServiceTest, ARankWhoseGroupHasFailedSaysWhoIsToBlame) {
  // Nobody watches in these groups, so b learns of a's failure by asking for a tensor only.
  GroupMembers members;
  members.name = "three";
  members.generation = kGeneration + 1;
  for (TestOwner* each : {&a_, &b_, &c_})
    members.workers.push_back({each->runtime().name(), each->runtime().incarnation()});
  const auto of_a = Must(a_.runtime().collectives().Make(members));
  members.rank = 1;
  const auto of_b = Must(b_.runtime().collectives().Make(members));
  // c has not joined, and refuses a's question.
  const absl::Status of_c = of_a->Receive(2, "", absl::Seconds(60)).Wait().status();
  EXPECT_EQ(GetDetail(of_c)->worker, "c") << of_c;
  const absl::Status asked = of_b->Receive(0, "", absl::Seconds(60)).Wait().status();
  EXPECT_EQ(asked.code(), of_c.code()) << asked;
  EXPECT_EQ(asked.message(), of_c.message());
  EXPECT_EQ(GetDetail(asked)->worker, "c") << asked;
}

TEST_F(CollectiveServiceTest, ARankThatHasLeftSaysSoToAQuestion) {
  const Future<Tensor> waits = other_->Receive(0, "", absl::Seconds(60));
  group_->Leave(absl::ZeroDuration());
  const absl::Status left = waits.Wait().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(left)) << left;
  EXPECT_THAT(std::string(left.message()), HasSubstr("rank 0 (a) has left before it sent"));
}

// Call 16 begins when call 0 is complete. By then b has left, so the notice that completes the one
// fails the other.
TEST_F(CollectiveServiceTest, ACallIsCompleteAlthoughTheGroupFailsWithTheNextOne) {
  constexpr int kCalls = static_cast<int>(GroupLedger::kMaxUnderWay);
  const auto parts = MakeThree();
  const std::shared_ptr<CollectiveGroup>& of_a = parts[0];
  std::vector<Future<CollectiveGroup::Tensors>> results;
  for (int call = 0; call < kCalls; ++call) {
    results.push_back(StartSmall(*of_a, 1));
    EXPECT_TRUE(Send(b_, kEnterCall, Enter(call, AllReduce(1)), Data(20)).ok());
  }
  // Call 1 completes before call 0, so that both results are there when the group fails.
  EXPECT_TRUE(Send(c_, kEnterCall, Enter(1, AllReduce(1)), Data(300)).ok());
  parts[1]->Leave(absl::ZeroDuration());
  WaitForOwners(of_a, 2);  // `parts`, and the watch of c
  results.push_back(StartSmall(*of_a, 1));
  EXPECT_TRUE(of_a->failure().ok());

  EXPECT_TRUE(Send(c_, kEnterCall, Enter(0, AllReduce(1)), Data(300)).ok());
  for (int call : {0, 1}) EXPECT_EQ(Must(results[call].Wait())[0].data<float>()[0], 321) << call;
  for (int call = 2; call <= kCalls; ++call) {
    const absl::Status failed = results[call].Wait().status();
    EXPECT_TRUE(absl::IsFailedPrecondition(failed)) << failed;
    EXPECT_THAT(std::string(failed.message()), HasSubstr("rank 1 (b) has left before call 16"));
  }
}

// A broadcast is complete at its root when all ranks have made it, although its data goes to a rank
// that takes whatever comes only when that rank has taken note.
TEST_F(CollectiveServiceTest, ACompleteCallKeepsItsResultWhenTheGroupFailsBeforeItIsOver) {
  constexpr int kCalls = static_cast<int>(GroupLedger::kMaxUnderWay);
  CollectiveCall take;
  take.operation = Operation::kBroadcast;
  CollectiveCall give = take;
  give.form = TensorForm{DType::kF32, {400'000}};
  std::vector<Future<CollectiveGroup::Tensors>> results;
  for (int call = 0; call < kCalls; ++call) results.push_back(StartSmall(*group_, 1));
  results.push_back(
      group_->Start(give, {Must(Tensor::Full({400'000}, DType::kF32, 7))}, absl::Seconds(60)));
  EXPECT_TRUE(Send(b_, kEnterCall, Enter(kCalls, take)).ok());
  results[0].OnReady([this](const absl::StatusOr<CollectiveGroup::Tensors>& /*sum*/) {
    group_->GiveUp(absl::InternalError("no more"));
  });
  // Completes call 0, and so begins and completes the broadcast.
  EXPECT_TRUE(Send(b_, kEnterCall, Enter(0, AllReduce(1)), Data(20)).ok());
  EXPECT_EQ(Must(results[0].Wait())[0].data<float>()[0], 21);
  EXPECT_EQ(Must(results[kCalls].Wait())[0].data<float>()[0], 7);
  EXPECT_EQ(results[1].Wait().status(), group_->failure());
}

// Nobody waits for the first results, so that threads which receive messages complete the calls.
TEST_F(CollectiveServiceTest, LargeNoticesOfRanksThatShareMemoryAreReducedOnAnyThread) {
  Connect(b_, c_);
  const auto parts = MakeThree();
  for (const auto& part : parts) part->set_shares_memory(true);
  constexpr int64_t kElements = (1 << 20) / sizeof(float);
  for (int round = 0; round < 20; ++round) {
    std::vector<Future<CollectiveGroup::Tensors>> sums;
    for (float number : {1.0f, 2.0f, 4.0f}) {
      sums.push_back(parts[sums.size()]->Start(
          AllReduce(kElements), {Must(Tensor::Full({kElements}, DType::kF32, number))},
          absl::Seconds(60)));
    }
    for (const auto& sum : sums) {
      while (round < 10 && !sum.IsReady()) std::this_thread::yield();
      ASSERT_TRUE(sum.Wait().ok()) << sum.Wait().status();
      const Tensor& result = sum.Wait()->at(0);
      for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(result.data<float>()[i], 7);
    }
  }
}

TEST_F(CollectiveServiceTest, ARankThatBelievesOtherwiseOfSharedMemoryFailsTheGroup) {
  const auto parts = MakeTwo(a_);
  parts[0]->set_shares_memory(true);
  const auto first = StartSmall(*parts[0], 1), second = StartSmall(*parts[1], 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(first.Wait().status())) << first.Wait().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second.Wait().status())) << second.Wait().status();
}

TEST_F(CollectiveServiceTest, TheTimersOfAWorkerRunOnAfterAReceiveWasLate) {
  const absl::Status late = group_->Receive(1, "", absl::Milliseconds(1)).Wait().status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  const Promise<Unit> ran;
  a_.runtime().timers().RunAfter(absl::Milliseconds(1), [ran] { ran.Set(Unit{}); });
  EXPECT_TRUE(ran.future().WaitFor(absl::Seconds(120)));
}

// Rank 0 waits for the sums of both others, and cannot tell at the deadline which of them waits for
// the other. Those of b come, but c may still wait for data of b, which would know. When nobody has
// spoken for a second, c is the one.
TEST_F(CollectiveServiceTest, ARankWhoseSumsAreLateIsNamedASecondAfterTheDeadline) {
  FakeClock clock;
  TimerQueue timers(clock);
  // Ranks whose groups have failed take all messages.
  const auto parts = MakeThree();
  for (int rank : {1, 2}) parts[rank]->GiveUp(absl::InternalError("takes all messages"));
  const auto group = std::make_shared<CollectiveGroup>(
      CollectiveGroup::Uses{a_.runtime().agent(), a_.runtime().executor(), timers, clock, nullptr},
      parts[0]->members());
  const auto advance = [&](absl::Duration by) { Advance(clock, timers, by); };
  constexpr int kPart = 100'000;
  const CollectiveCall call = AllReduce(3 * kPart);
  const Buffer part = Buffer::FromString(std::string(kPart * sizeof(float), '\0'));
  const auto sum =
      group->Start(call, {Must(Tensor::Full({3 * kPart}, DType::kF32, 1))}, absl::Seconds(60));
  for (int from : {1, 2}) {
    EXPECT_TRUE(group->ServeEnter(from, Enter(0, call), {part}).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(group->ServePiece(from, Piece(0, 0, 0), {part})))
        << "the notice has brought it";
  }
  advance(absl::Seconds(60));
  advance(absl::Milliseconds(100));  // in which it reads what has come
  EXPECT_TRUE(group->failure().ok()) << group->failure();
  EXPECT_TRUE(group->ServePiece(1, Piece(0, 1, 0), {part}).ok());
  advance(absl::ZeroDuration());
  EXPECT_TRUE(group->failure().ok()) << group->failure();
  advance(absl::Seconds(1));
  ASSERT_TRUE(absl::IsDeadlineExceeded(group->failure())) << group->failure();
  EXPECT_EQ(GetDetail(group->failure())->worker, "c");
  EXPECT_EQ(sum.Wait().status(), group->failure());
  WaitForOwners(group, 1);  // which use the clock
}

// The group of a rank that has given up a receive has ended, and its watch says how.
TEST_F(CollectiveServiceTest, ASendToARankThatHasGivenUpWaitsForTheReason) {
  const Tensor ones = Must(Tensor::Full({4}, DType::kF32, 1));
  const auto ask = [this](uint64_t number) {
    v1::CollectiveTake take;
    take.set_number(number);
    const auto call = std::make_shared<GivenUpCall>();
    EXPECT_TRUE(group_->ServeTake(1, take, rpc::Answer<rpc::Contents>(call)).ok());
    return call;
  };
  const Future<Unit> first = group_->Send(ones, 1, "", absl::Seconds(60));
  EXPECT_THAT(ask(0)->replies, ElementsAre(absl::StatusCode::kCancelled));
  EXPECT_FALSE(first.IsReady()) << first.Wait().status();
  const auto asked = ask(1);
  const Future<Unit> second = group_->Send(ones, 1, "", absl::Seconds(60));
  EXPECT_THAT(asked->replies, ElementsAre(absl::StatusCode::kCancelled));
  EXPECT_FALSE(second.IsReady()) << second.Wait().status();
  // Nothing is lost if the rank asks all the same.
  EXPECT_EQ(Must(other_->Receive(0, "", absl::Seconds(60)).Wait()).NumElements(), 4);
  EXPECT_TRUE(first.Wait().ok());
  group_->GiveUp(absl::DataLossError("no more data"));
  EXPECT_EQ(second.Wait().status(), group_->failure());
}

TEST_F(CollectiveServiceTest, AResultThatNoHonestRankSendsNamesItsSender) {
  CollectiveCall broadcast;
  broadcast.operation = Operation::kBroadcast;
  broadcast.form = TensorForm{DType::kBool, {1}};
  broadcast.root = 1;
  EXPECT_TRUE(Send(b_, kEnterCall, Enter(0, broadcast), "\x02").ok());
  const absl::Status status = group_->Start(broadcast, {}, absl::Seconds(60)).Wait().status();
  EXPECT_EQ(group_->failure(), status);
  ExpectNamesSender(status);
}

TEST_F(CollectiveServiceTest, ATensorThatNoHonestRankSendsNamesItsSender) {
  const Tensor bad = Must(Tensor::FromBuffer({1}, DType::kBool, Buffer::FromString("\x02")));
  const Future<Unit> sent = other_->Send(bad, 0, "", absl::Seconds(60));
  ExpectNamesSender(group_->Receive(1, "", absl::Seconds(60)).Wait().status());
  EXPECT_TRUE(sent.Wait().ok());
}

TEST_F(CollectiveServiceTest, ARankWithoutMemoryToSendNamesItself) {
  testing::PickyRules rules;
  rules.refuses = [](const carrier::Message& message) {
    return message.buffers.empty() ? absl::OkStatus() : absl::ResourceExhaustedError("no memory");
  };
  TestOwner narrow("narrow", Picky(rules));
  const auto parts = MakeTwo(narrow);
  for (const auto& part : parts) {
    const absl::Status status = StartSmall(*part, 1).Wait().status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("group 'two': rank 0 (narrow) cannot go on: narrow, this worker, cannot "
                          "queue a request to b: no memory"));
    EXPECT_EQ(GetDetail(status)->worker, "narrow");
  }
}

TEST_F(CollectiveServiceTest, ARankWithoutMemoryForATensorNamesItself) {
  testing::PickyRules rules;
  rules.lacks_room = [](const carrier::Message& message) {
    return message.buffers.empty() ? absl::OkStatus() : absl::ResourceExhaustedError("no memory");
  };
  TestOwner narrow("narrow", Picky(rules));
  const auto parts = MakeTwo(narrow);
  const Future<Unit> sent =
      parts[1]->Send(Must(Tensor::Full({4}, DType::kF32, 1)), 0, "", absl::Seconds(60));
  const absl::Status status = parts[0]->Receive(1, "", absl::Seconds(60)).Wait().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("group 'two': rank 0 (narrow) cannot go on"));
  EXPECT_EQ(GetDetail(status)->worker, "narrow");
  EXPECT_TRUE(sent.Wait().ok());
}

// A worker may be shut down while it joins. A watch that waited then would keep the group.
TEST_F(CollectiveServiceTest, AGroupThatIsLeftBeforeItWatchesIsNotKeptByItsWatches) {
  const std::weak_ptr<CollectiveGroup> kept = group_;
  group_->Leave(absl::ZeroDuration());
  group_->Watch();
  group_.reset();
  // EndedGroups keeps it, and nobody else.
  const absl::Time until = absl::Now() + absl::Seconds(120);
  while (kept.use_count() > 1 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(kept.use_count(), 1);
}

TEST_F(CollectiveServiceTest, AfterTheWorkersEndNoGroupIsMade) {
  a_.runtime().Shutdown(absl::ZeroDuration());
  GroupMembers members = group_->members();
  EXPECT_TRUE(
      absl::IsFailedPrecondition(a_.runtime().collectives().Make(std::move(members)).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      group_->Start(CollectiveCall(), {}, absl::Seconds(1)).Wait().status()));
}

}  // namespace
}  // namespace psd::services
