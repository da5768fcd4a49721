// Results that the loss does not use. They do not matter in exact mode. Fast mode, which is
// PyTorch's algorithm, waits for their gradients until the deadline.

#include <string>
#include <thread>

#include "core/autograd/functions/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/dist_autograd/dist_autograd_fixture.h"

namespace psd::dist_autograd {
namespace {

using ::testing::HasSubstr;

class UnusedResultsTest : public DistAutogradTest {
 protected:
  // Starts a backward in fast mode and delivers messages until there are none left.
  Future<Unit> StartFast(const ContextPtr& context, const Variable& loss) {
    auto done = trainer_.autograd->Backward(context, {loss}, InMode(BackwardMode::kFast));
    network_.RunAll();
    return done;
  }

  // Checks that the pass waits until its deadline passes on `worker`, and that the error names the
  // message whose gradient is missing.
  void ExpectWaitsFor(const Future<Unit>& done, TestWorker& worker, GlobalId message) {
    EXPECT_FALSE(done.IsReady());
    worker.PassTime(absl::Seconds(61));
    while (!done.IsReady()) {  // its timers run on another thread
      if (!network_.RunOne()) std::this_thread::yield();
    }
    network_.RunAll();
    const absl::Status status = done.Wait().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()), HasSubstr("error on " + worker.name()));
    EXPECT_THAT(std::string(status.message()), HasSubstr(message.ToString()));
    ExpectAtRest();
  }

  void ExpectExact(const ContextPtr& context, const Variable& loss) {
    absl::Status status = trainer_.Backward(context, {loss});
    EXPECT_TRUE(status.ok()) << status;
  }
};

TEST_P(UnusedResultsTest, DAG_41_DAG_42_DAG_43_DAG_44_ExactModeNeverWaitsForThem) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  trainer_.Call(context, "owner0", "mul", {x, x});
  trainer_.Call(context, "owner0", "fetch", {});
  trainer_.Call(context, "owner1", "nested", {x});
  Variable used = trainer_.Call(context, "owner0", "fetch", {})[0];
  ExpectExact(context, Sum(Mul(used, 2)));
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{2, 2}));
  EXPECT_EQ(context->Gradients()->size(), 0u);
  EXPECT_EQ(network_.Count("autograd.gradient"), 1);
}

TEST_P(UnusedResultsTest, DAG_41_FastModeWaitsForTheGradientsOfAnUnusedCall) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  trainer_.Call(context, "owner0", "mul", {x, x});
  GlobalId unused = context->Sends()[0]->message();
  Variable used = trainer_.Call(context, "owner1", "fetch", {})[0];
  ExpectWaitsFor(StartFast(context, Sum(used)), trainer_, unused);
}

TEST_P(UnusedResultsTest, DAG_42_FastModeWhereThatWorkerIsReachedByAnotherCall) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  trainer_.Call(context, "owner0", "mul", {x, x});
  GlobalId unused = PartAt(owner0_, context).Sends()[0]->message();
  Variable used = trainer_.Call(context, "owner0", "mul", {x, x})[0];
  ExpectWaitsFor(StartFast(context, Sum(used)), owner0_, unused);
}

TEST_P(UnusedResultsTest, AWorkerThatDrainsEndsAPassThatWaitsThere) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  trainer_.Call(context, "owner0", "mul", {x, x});
  Variable used = trainer_.Call(context, "owner0", "mul", {x, x})[0];
  auto done = StartFast(context, Sum(used));
  EXPECT_FALSE(done.IsReady());
  owner0_.agent.BeginDraining();
  network_.RunAll();
  ASSERT_TRUE(done.IsReady());
  const absl::Status status = done.Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("owner0 is draining"));
  ExpectAtRest();
}

TEST_P(UnusedResultsTest, DAG_43_FastModeWithAnUnusedRemoteLeaf) {
  ContextPtr context = trainer_.autograd->NewContext();
  trainer_.Call(context, "owner0", "fetch", {});
  GlobalId unused = PartAt(owner0_, context).Sends()[0]->message();
  Variable elsewhere = trainer_.Call(context, "owner1", "fetch", {})[0];
  auto done = StartFast(context, Sum(elsewhere));
  ASSERT_TRUE(done.IsReady()) << "its owner is not reached";
  EXPECT_TRUE(done.Wait().ok());
  Variable used = trainer_.Call(context, "owner0", "fetch", {})[0];
  ExpectWaitsFor(StartFast(context, Sum(used)), owner0_, unused);
}

TEST_P(UnusedResultsTest, DAG_44_FastModeWithTwoFetchesOfWhichOneIsUsed) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable used = trainer_.Call(context, "owner0", "fetch", {})[0];
  GlobalId first = PartAt(owner0_, context).Sends()[0]->message();
  trainer_.Call(context, "owner0", "fetch", {});
  GlobalId unused;
  for (const auto& send : PartAt(owner0_, context).Sends()) {
    if (send->message() != first) unused = send->message();
  }
  ExpectWaitsFor(StartFast(context, Sum(used)), owner0_, unused);
}

INSTANTIATE_TEST_SUITE_P(Orders, UnusedResultsTest, ::testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace psd::dist_autograd
