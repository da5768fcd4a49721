// A rank whose process was stopped for a while finds late that its messages were not taken in time.

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/status.h"
#include "core/base/timer.h"
#include "core/rpc/rpc_agent.h"
#include "core/services/collectives/collective_call.h"
#include "core/services/collectives/collective_codec.h"
#include "core/services/collectives/collective_group.h"
#include "core/services/collectives/collective_service.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/collective.pb.h"
#include "tests/core/fake_rpc.h"

namespace psd::services {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);  // of the call
constexpr absl::Duration kLimit = absl::Seconds(70);    // of its messages

// a, b and c are the ranks of a group. a has made a call, whose message b has not taken.
class StoppedRankTest : public ::testing::Test {
 protected:
  StoppedRankTest() {
    network_.SetFilter([](const std::string&, const std::string& to, const rpc::Request& request) {
      const bool lost = to == "b" && request.method == kEnterCall.info.name;
      return lost ? absl::DeadlineExceededError("b was late") : absl::OkStatus();
    });
    call_.operation = Operation::kAllReduce;
    call_.reduction = Reduction::kSum;
    call_.form = TensorForm{DType::kF32, {1}};
    groups_[0]->Watch();
    network_.RunAll();
    sum_ = groups_[0]->Start(call_, {*Tensor::Full({1}, DType::kF32, 1)}, kTimeout);
  }

  void TearDown() override {
    for (CollectiveService& service : services_) service.Close(absl::ZeroDuration());
    network_.RunAll();
  }

  // Rank `from` makes the call, too.
  void Enters(int from) {
    v1::CollectiveEnter enter;
    enter.set_generation(groups_[0]->members().generation);
    EncodeCall(call_, *enter.mutable_call());
    const std::string zero(sizeof(float), '\0');
    EXPECT_TRUE(groups_[0]->ServeEnter(from, enter, {Buffer::FromString(zero)}).ok());
  }
  // Lets the timers run that are due.
  void RunTimers() {
    timers_.Poll();
    const Promise<Unit> ran;
    timers_.RunAfter(absl::ZeroDuration(), [ran] { ran.Set(Unit{}); });
    EXPECT_TRUE(ran.future().Wait().ok());
  }
  // The rank that a holds responsible; empty if its group has not failed.
  std::string Culprit() const {
    const auto detail = GetDetail(groups_[0]->failure());
    return detail.has_value() ? detail->worker : "";
  }

  FakeClock clock_;
  TimerQueue timers_{clock_};
  InlineExecutor executor_;
  testing::FakeNetwork network_;
  testing::FakeAgent agents_[3] = {
      {network_, {"a", 1}}, {network_, {"b", 2}}, {network_, {"c", 3}}};
  CollectiveService services_[3] = {CollectiveService(Uses(0)), CollectiveService(Uses(1)),
                                    CollectiveService(Uses(2))};
  const std::shared_ptr<CollectiveGroup> groups_[3] = {Make(0), Make(1), Make(2)};
  CollectiveCall call_;
  Future<CollectiveGroup::Tensors> sum_;

 private:
  CollectiveGroup::Uses Uses(int rank) {
    return {agents_[rank], executor_, timers_, clock_, nullptr};
  }
  std::shared_ptr<CollectiveGroup> Make(int rank) {
    GroupMembers members;
    members.name = "ranks";
    members.generation = 7;
    for (const testing::FakeAgent& agent : agents_) members.workers.push_back(agent.self());
    members.rank = rank;
    return *services_[rank].Make(std::move(members));
  }
};

TEST_F(StoppedRankTest, DDP_30_ARankThatWasStoppedReadsWhatTheOthersHaveSaidBeforeItBlamesOne) {
  groups_[2]->GiveUp(absl::InternalError("its disk burns"));
  clock_.Advance(kLimit + absl::Seconds(30));
  // The message that was not taken comes first, then the end of c's part.
  ASSERT_TRUE(network_.RunOne());
  EXPECT_TRUE(groups_[0]->failure().ok()) << groups_[0]->failure();
  network_.RunAll();
  EXPECT_EQ(Culprit(), "c") << groups_[0]->failure();
  EXPECT_EQ(sum_.Wait().status(), groups_[0]->failure());
}

TEST_F(StoppedRankTest, DDP_30_ARankThatTookNothingIsBlamedASecondAfterTheStop) {
  // The call is complete, so that only the message that was not taken can fail the group.
  for (int from : {1, 2}) Enters(from);
  ASSERT_TRUE(sum_.IsReady());
  clock_.Advance(kLimit + absl::Seconds(30));
  network_.RunAll();
  RunTimers();
  clock_.Advance(absl::Milliseconds(999));
  RunTimers();
  EXPECT_TRUE(groups_[0]->failure().ok()) << groups_[0]->failure();
  clock_.Advance(absl::Milliseconds(1));
  RunTimers();
  EXPECT_EQ(Culprit(), "b") << groups_[0]->failure();
}

TEST_F(StoppedRankTest, DDP_30_ARankThatWasNotStoppedBlamesAtOnceWhoTookNothing) {
  clock_.Advance(kLimit);
  network_.RunAll();
  EXPECT_EQ(Culprit(), "b") << groups_[0]->failure();
}

}  // namespace
}  // namespace psd::services
