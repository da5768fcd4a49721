// Contexts end, and their memory is released on all workers.

#include <atomic>
#include <string>
#include <thread>

#include "core/autograd/functions/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/dist_autograd/dist_autograd_fixture.h"

namespace psd::dist_autograd {
namespace {

using ::testing::HasSubstr;

TEST_P(DistAutogradTest, DAG_45_ReleaseReachesEveryWorker) {
  ContextPtr context = trainer_.autograd->NewContext();
  trainer_.Call(context, "owner0", "nested", {Variable(Vector({1, 2}))});
  trainer_.autograd->Release(context->id());
  network_.RunAll();
  ExpectNoContexts();
}

TEST_P(DistAutogradTest, DAG_46_ReleaseSurvivesLostMessages) {
  ContextPtr context = trainer_.autograd->NewContext();
  trainer_.Call(context, "owner0", "nested", {Variable(Vector({1, 2}), true)});
  network_.Lose("autograd.release", 3);
  trainer_.autograd->Release(context->id());
  network_.RunAll();
  EXPECT_EQ(network_.lost(), 3);
  ExpectNoContexts();
}

TEST_P(DistAutogradTest, ACallThatItsReleaseOvertookBringsNothingBack) {
  ContextPtr context = trainer_.autograd->NewContext();
  rpc::Request late;
  late.method = "test.call";
  late.attachments = {{99, "fetch"}};
  ASSERT_TRUE(trainer_.autograd->WrapRequest(context, "owner0", {}, late).ok());
  trainer_.autograd->Release(context->id());
  network_.RunAll();
  EXPECT_FALSE(trainer_.TryCall(context, "owner0", "fetch", {}).ok());
  auto reply = trainer_.agent.StartCall("owner0", std::move(late), {}).reply();
  network_.RunAll();
  EXPECT_FALSE(reply.Wait().ok());
  ExpectNoContexts();
}

TEST_P(DistAutogradTest, DAG_45_ACalleeThatIsAddedWhileItsContextIsReleasedIsToldOrRefused) {
  int told = 0;
  for (int i = 0; i < 100; ++i) {
    const ContextPtr context = trainer_.autograd->NewContext();
    std::atomic<int> ready{0};
    const auto together = [&ready] {
      for (++ready; ready < 2;) std::this_thread::yield();
    };
    std::thread releasing([&] {
      together();
      trainer_.autograd->Release(context->id());
    });
    together();
    rpc::Request request;
    told += trainer_.autograd->WrapRequest(context, "owner0", {}, request).ok() ? 1 : 0;
    releasing.join();
  }
  EXPECT_GE(network_.Count("autograd.release"), told);
  network_.RunAll();
  ExpectNoContexts();
}

TEST_P(DistAutogradTest, DAG_47_TheCreatorsSessionTakesItsContextsAlong) {
  ContextPtr context = trainer_.autograd->NewContext();
  trainer_.Call(context, "owner0", "nested", {Variable(Vector({1, 2}), true)});
  network_.EndSessionsOf("trainer0");
  network_.RunAll();
  EXPECT_EQ(owner0_.autograd->stats().contexts, 0u);
  EXPECT_EQ(owner1_.autograd->stats().contexts, 0u);
}

TEST_P(DistAutogradTest, DAG_47_WhatIsLeftOfAContextFailsWithTheReasonOfTheLostSession) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable w = trainer_.Call(context, "owner0", "fetch", {})[0];
  auto running = trainer_.autograd->Backward(context, {Sum(Mul(w, w))}, {});
  network_.EndSessionsOf("trainer0");
  EXPECT_EQ(trainer_.autograd->Backward(context, {Sum(w)}, {}).Wait().status().code(),
            absl::StatusCode::kAborted);
  network_.RunUntil(running);
  EXPECT_EQ(running.Wait().status().code(), absl::StatusCode::kAborted)
      << "owner0 itself knows only that it has no such context: " << running.Wait().status();
  EXPECT_THAT(std::string(running.Wait().status().message()), HasSubstr("the session on owner0"));
  rpc::Request elsewhere;
  EXPECT_EQ(trainer_.autograd->WrapRequest(context, "owner1", {}, elsewhere).code(),
            absl::StatusCode::kAborted);
  ContextPtr next = trainer_.autograd->NewContext();
  Variable again = trainer_.Call(next, "owner0", "fetch", {})[0];
  EXPECT_TRUE(trainer_.Backward(next, {Sum(again)}).ok());
}

// Also one that is sent when the next session is open and the loss of the former one is not known
// yet.
TEST_P(DistAutogradTest, ARequestIsForTheSessionThatHasThePartOfItsContext) {
  network_.EndSessionsOf("trainer0");
  const uint64_t epoch = trainer_.agent.epoch();
  ContextPtr context = trainer_.autograd->NewContext();
  rpc::Request late;
  late.method = "test.call";
  late.attachments = {{99, "fetch"}};
  ASSERT_TRUE(trainer_.autograd->WrapRequest(context, "owner0", {}, late).ok());
  EXPECT_TRUE(late.session_bound);
  EXPECT_EQ(late.only_incarnation, owner0_.agent.self().incarnation);
  EXPECT_EQ(late.only_epoch, epoch);
  rpc::Request unknown;
  ASSERT_TRUE(trainer_.autograd->WrapRequest(context, "nobody", {}, unknown).ok());
  EXPECT_EQ(unknown.only_epoch, 0u) << "there is no session";
  network_.EndSessionsOf("trainer0");
  const auto reply = trainer_.agent.StartCall("owner0", std::move(late), {}).reply();
  network_.RunAll();
  EXPECT_EQ(reply.Wait().status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(owner0_.autograd->stats().contexts, 0u);
}

INSTANTIATE_TEST_SUITE_P(Orders, DistAutogradTest, ::testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace psd::dist_autograd
