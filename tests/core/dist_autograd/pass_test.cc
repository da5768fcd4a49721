#include "core/dist_autograd/pass.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/autograd/functions/functions.h"
#include "core/dist_autograd/context_table.h"
#include "core/dist_autograd/gradient_messages.h"
#include "gtest/gtest.h"

namespace psd::dist_autograd {
namespace {

// A worker that keeps the methods of the requests that its passes send.
class FakeHost : public PassHost {
 public:
  const rpc::PeerInfo& self() const override { return self_; }
  Future<rpc::Reply> Send(const std::string&, rpc::Request request, absl::Duration) override {
    sent.push_back(request.method);
    return Promise<rpc::Reply>().future();
  }
  TimerQueue::Id RunAfter(absl::Duration, Task) override { return 0; }
  void CancelTimer(TimerQueue::Id) override {}
  absl::Status RunOnExecutor(const rpc::ServerCall&, Task task) override {
    task();
    return absl::OkStatus();
  }
  absl::Status RunOwn(Task task) override {
    task();
    return absl::OkStatus();
  }
  GradientMessages& messages() override { return messages_; }
  void PassEnded(const Pass&) override {}

  std::vector<std::string> sent;

 private:
  const rpc::PeerInfo self_{"trainer0", 1};
  GradientMessages messages_{{}};
};

class PassTest : public ::testing::TestWithParam<BackwardMode> {};

TEST_P(PassTest, OneThatFailedBeforeItsRunSendsNoGradients) {
  IdSource ids(1);
  auto context = std::make_shared<ContextState>(GlobalId{1, 1}, ids);
  context->CountRecv(/*from_self=*/false);
  const auto recv = std::make_shared<RecvFunction>(context->id(), GlobalId{2, 5}, "owner0", 1,
                                                   std::vector<GlobalId>(), /*foreign=*/false,
                                                   /*takes_pieces=*/false);
  const Variable loss = Sum(Variable::OfNode(Tensor::Of<float>({2}, {1, 2}), recv, 0));
  auto host = std::make_shared<FakeHost>();
  PassInfo info;
  info.context = context->id();
  info.pass = {1, 2};
  info.mode = GetParam();
  info.timeout = absl::Seconds(1);
  auto pass = std::make_shared<Pass>(host, context, info);
  pass->Fail(absl::AbortedError("its context was released"), "");
  const Future<Unit> ended = pass->Run(*LossRoots({loss}));
  EXPECT_EQ(ended.Wait().status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(host->sent.empty()) << host->sent.front();
}

INSTANTIATE_TEST_SUITE_P(Modes, PassTest,
                         ::testing::Values(BackwardMode::kExact, BackwardMode::kFast));

TEST(ContextTableTest, ALateNoticeAboutAnOldSessionLeavesTheContextsOfTheNextOne) {
  constexpr Incarnation kTrainer = 2, kOther = 3;
  constexpr GlobalId kOld{kTrainer, 1}, kByItself{kTrainer, 2}, kByAnother{kTrainer, 3};
  IdSource ids(1);
  ContextTable table({"owner0", 1}, ids);
  ASSERT_TRUE(table.FindOrJoin(kOld, {kTrainer, 4}).ok());
  ASSERT_TRUE(table.FindOrJoin(kByItself, {kTrainer, 6}).ok());
  ASSERT_TRUE(table.FindOrJoin(kByAnother, {kOther, 5}).ok());
  EXPECT_EQ(table.EraseOf({kTrainer, 4}, [] { return true; }).size(), 1u);
  EXPECT_FALSE(table.Find(kOld).ok());
  EXPECT_TRUE(table.Find(kByItself).ok());
  EXPECT_TRUE(table.Find(kByAnother).ok());
  // A context that joins while the table asks about its creator does not belong to the ended
  // session.
  constexpr GlobalId kJoining{kTrainer, 4};
  const auto erased = table.EraseOf({kTrainer, 6}, [&] {
    EXPECT_TRUE(table.FindOrJoin(kJoining, {kOther, 5}).ok());
    return false;
  });
  EXPECT_EQ(erased.size(), 2u);
  EXPECT_TRUE(table.Find(kJoining).ok());
}

TEST(ContextTableTest, PassesOfManyThreadsStartWithGrowingIds) {
  IdSource ids(1);
  ContextTable table({"trainer0", 1}, ids);
  const auto context = table.Create();
  auto host = std::make_shared<FakeHost>();
  std::atomic<uint64_t> last{0};  // the id of the last pass that ran; one pass runs at a time
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        auto pass = table.StartPass(context, [&](GlobalId id) {
          PassInfo info;
          info.context = context->id();
          info.pass = id;
          return std::make_shared<Pass>(host, context, info);
        });
        if (!pass.ok()) continue;  // another pass is running
        const uint64_t id = (*pass)->info().pass.counter;
        EXPECT_LT(last.exchange(id), id);
        table.EndPass(context->id(), (*pass)->info().pass);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(table.NumPasses(), 0u);
}

}  // namespace
}  // namespace psd::dist_autograd
