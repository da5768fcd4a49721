// References that cannot be used: errors, timeouts, values that are gone, shutdown.

#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/calls.h"
#include "client/runtime_of.h"
#include "core/carrier/faulty/tcp_route.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/references_world.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

using ReferencesFailuresTest = ReferencesWorld;

TEST_F(ReferencesFailuresTest, RREF_21_AProgramThatNobodyWaitsForDoesNotWaitForItsArgument) {
  RRef slow = Must(trainer_->Remote("owner0", Named("park"), {}));
  CallOptions shortly;
  shortly.timeout = absl::Milliseconds(20);
  EXPECT_EQ(
      trainer_->RpcSync("owner0", Function::Operator("neg", 1), {slow}, shortly).status().code(),
      absl::StatusCode::kDeadlineExceeded);
  parking_.Take().Set(Values{Tensor::Scalar(4.0f)});
  EXPECT_TRUE(trainer_->RpcSync("owner0", Function::Operator("neg", 1), {slow}).ok());
}

TEST_F(ReferencesFailuresTest, RREF_34_AFetchThatFailsReleasesWhatTheOtherOwnersAnswered) {
  {
    RRef failed = Must(trainer_->Remote("owner1", Named("fail"), {}));
    RRef list = Must(trainer_->Remote("owner0", Named("make_list"), {}));
    ASSERT_TRUE(list.confirmed().Wait().ok());
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(trainer_->ToHere({list, failed}).status().code(), absl::StatusCode::kOutOfRange);
      EXPECT_EQ(trainer_->ToHere({failed, list}).status().code(), absl::StatusCode::kOutOfRange);
    }
  }
  WaitUntilNothingIsLeft();
}

TEST_F(ReferencesFailuresTest, AReferenceFromANameIsGoodWhoeverDropsTheNameMeanwhile) {
  // One thread creates and uses a name again and again, while another one drops it. Every reference
  // that is returned refers to an existing value.
  std::atomic<bool> done{false};
  auto other = Start("trainer1");
  std::thread drops([&] {
    while (!done) other->Drop("owner0", "w").IgnoreError();
  });
  for (int i = 0; i < 300; ++i) {
    RRef made = Must(trainer_->GetOrCreate("owner0", "w", Full({1}, 3)));
    absl::StatusOr<Values> read = trainer_->ToHere({made});
    if (!read.ok()) {
      ADD_FAILURE() << i << ": " << read.status();
      break;
    }
  }
  done = true;
  drops.join();
}

TEST_F(ReferencesFailuresTest, RREF_21_RREF_26_ACreationThatNeverBeginsFailsWhoeverWouldPassItOn) {
  // Its owner accepts connections, and sends nothing.
  int port = 0;
  const int silent = carrier::ListenOnLoopback(&port);
  RuntimeOf(*trainer_).agent().AddPeer("silent", absl::StrCat("127.0.0.1:", port));
  CallOptions shortly;
  shortly.timeout = absl::Milliseconds(20);
  RRef never = Must(trainer_->Remote("silent", Named("park"), {}, shortly));
  Future<Values> passed = trainer_->RpcAsync("owner1", Named("about"), {never});
  EXPECT_EQ(passed.Wait().status().code(), absl::StatusCode::kDeadlineExceeded);
  close(silent);
}

TEST_F(ReferencesFailuresTest, RREF_24_RREF_25_AnErrorIsKeptSharedAndToldToEveryHolder) {
  {
    RRef failed = Must(trainer_->Remote("owner0", Named("fail"), {}));
    for (int i = 0; i < 2; ++i) {
      const absl::Status told = trainer_->ToHere({failed}).status();
      EXPECT_EQ(told.code(), absl::StatusCode::kOutOfRange);
      EXPECT_THAT(std::string(told.message()), HasSubstr("first line\n"));
    }
    EXPECT_EQ(owner0_.runtime().rrefs().stats().forks, 1u) << "it is counted as any other";
    EXPECT_TRUE(trainer_->RpcSync("owner1", Named("keep"), {failed}).ok());
    EXPECT_TRUE(trainer_->RpcSync("owner0", Named("about"), {failed}).ok());
    EXPECT_EQ(trainer_->RpcSync("owner1", Named("fetch"), {failed}).status().code(),
              absl::StatusCode::kOutOfRange);
  }
  EmptyDrawer();
  WaitUntilNothingIsLeft();
}

TEST_F(ReferencesFailuresTest, RREF_26_RREF_30_ACreationThatTimedOutFailsEveryUse) {
  CallOptions shortly;
  shortly.timeout = absl::Milliseconds(20);
  for (const char* callee : {"owner0", "trainer0"}) {
    RRef late = Must(trainer_->Remote(callee, Named("park"), {}, shortly));
    const absl::Status created = late.confirmed().Wait().status();
    EXPECT_EQ(created.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(created.message()), HasSubstr("creation of"));
    EXPECT_EQ(trainer_->ToHere({late}).status().code(), absl::StatusCode::kDeadlineExceeded);
    for (const char* to : {"owner0", "owner1", "trainer0"}) {
      EXPECT_EQ(trainer_->RpcSync(to, Named("fetch"), {late}).status().code(),
                absl::StatusCode::kDeadlineExceeded)
          << callee << " to " << to;
    }
  }
  std::atomic<bool> done{false};
  std::thread answers([&] {  // the functions that began before they timed out
    while (!done) {
      if (parking_.size() > 0) parking_.Take().Set(Values{1});
      std::this_thread::yield();
    }
  });
  WaitUntilNothingIsLeft();
  done = true;
  answers.join();
}

TEST_F(ReferencesFailuresTest, RREF_29_AFetchThatTimedOutSpoilsNothing) {
  RRef slow = Must(trainer_->Remote("owner0", Named("park"), {}));
  CallOptions shortly;
  shortly.timeout = absl::Milliseconds(20);
  EXPECT_EQ(trainer_->ToHere({slow}, shortly).status().code(), absl::StatusCode::kDeadlineExceeded);
  parking_.Take().Set(Values{6});
  EXPECT_EQ(Fetched(slow), 6);
}

TEST_F(ReferencesFailuresTest, RREF_35_RREF_36_RREF_37_AfterShutdownNothingIsLeftAndUsesFail) {
  struct Cycle {
    RRef rref;
    std::shared_ptr<Cycle> self;
  };
  auto cycle = std::make_shared<Cycle>();
  cycle->self = cycle;
  cycle->rref = Make("owner0", 1);
  RRef mine = Must(trainer_->Remote("trainer0", Named("echo"), {2}));
  ASSERT_TRUE(trainer_->Shutdown().ok());
  while (owner0_.runtime().store().stats().anonymous > 0) std::this_thread::yield();
  EXPECT_EQ(owner0_.runtime().rrefs().stats().forks, 0u);
  EXPECT_EQ(trainer_->ToHere({cycle->rref}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(trainer_->RpcSync("owner0", Named("about"), {cycle->rref}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  cycle->self.reset();
}

TEST_F(ReferencesFailuresTest, RREF_38_HeldReferencesAreReportedAndOnRequestAnError) {
  auto other = Start("trainer1");
  RRef held = Must(other->Remote("owner0", Named("echo"), {1}));
  ASSERT_TRUE(held.confirmed().Wait().ok());
  ShutdownOptions strict;
  strict.refuse_held_references = true;
  const absl::Status refused = other->Shutdown(strict);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(held.value_id().ToString()));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(held.body()->fork_id().ToString()));
  EXPECT_EQ(other->NewContext().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(trainer_->Shutdown(strict).ok()) << "it holds none";
}

TEST_F(ReferencesFailuresTest, RREF_51_AnIdThatIsNotThereFailsAtOnce) {
  RRef gone = Make("owner0", 1);
  ASSERT_TRUE(owner0_.runtime().store().Erase(gone.value_id()));
  const absl::Status fetched = trainer_->ToHere({gone}).status();
  EXPECT_EQ(fetched.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(fetched.message()), HasSubstr(gone.value_id().ToString()));
  EXPECT_EQ(trainer_->RpcSync("owner1", Named("fetch"), {gone}).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace psd
