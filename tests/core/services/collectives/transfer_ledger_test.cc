#include "core/services/collectives/transfer_ledger.h"

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/services/collectives/collective_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::services {
namespace {

using ::testing::HasSubstr;

const absl::Time kStart = absl::UnixEpoch();
constexpr absl::Duration kTimeout = absl::Seconds(5);

// Rank 0 of three.
class TransferLedgerTest : public ::testing::Test {
 protected:
  // Returns whether the next tensor to `to` is given at once.
  bool Send(int to, const std::string& label = "") {
    bool give = false;
    const auto number = ledger_.Send(to, label, kStart, kTimeout, &give);
    EXPECT_TRUE(number.ok()) << number.status();
    return give;
  }
  uint64_t Receive(int from, absl::Duration timeout = kTimeout) {
    const auto number = ledger_.Receive(from, "", kStart, timeout);
    EXPECT_TRUE(number.ok()) << number.status();
    return number.value_or(99);
  }
  bool Asked(int from, uint64_t number, const std::string& label = "") {
    const auto give = ledger_.Asked(from, number, label);
    EXPECT_TRUE(give.ok()) << give.status();
    return give.value_or(false);
  }

  TransferLedger ledger_{"ranks", {"a", "b", "c"}, 0};
};

TEST_F(TransferLedgerTest, ASendIsGivenWhenBothRanksAreReady) {
  EXPECT_FALSE(Send(1));
  EXPECT_FALSE(Asked(2, 0)) << "another rank";
  EXPECT_TRUE(Asked(1, 0));
  EXPECT_FALSE(Asked(1, 1));
  EXPECT_TRUE(Send(1));
  EXPECT_TRUE(Send(2));
  EXPECT_EQ(ledger_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(TransferLedgerTest, ReceivesOfEachRankAreNumbered) {
  EXPECT_EQ(Receive(1), 0u);
  EXPECT_EQ(Receive(2), 0u);
  EXPECT_EQ(Receive(1), 1u);
  ledger_.Got(1, 1);
  ledger_.Got(1, 0);
  ledger_.Got(2, 0);
  EXPECT_EQ(ledger_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(TransferLedgerTest, DDP_30_WhoIsLateIsNamed) {
  Send(1);
  Receive(2, 2 * kTimeout);
  EXPECT_EQ(ledger_.NextDeadline(), kStart + kTimeout);
  EXPECT_TRUE(ledger_.Expire(kStart + kTimeout - absl::Nanoseconds(1)).ok());
  const absl::Status send = ledger_.Expire(kStart + kTimeout);
  EXPECT_TRUE(absl::IsDeadlineExceeded(send));
  EXPECT_THAT(std::string(send.message()),
              HasSubstr("rank 0 (a) waited 5s to send tensor 0 to rank 1 (b), which did not "
                        "receive it"));
  EXPECT_EQ(GetDetail(send)->worker, "b");
  EXPECT_TRUE(Asked(1, 0));
  const absl::Status receive = ledger_.Expire(kStart + 2 * kTimeout);
  EXPECT_THAT(std::string(receive.message()), HasSubstr("to receive tensor 0 from rank 2 (c)"));
  EXPECT_EQ(GetDetail(receive)->worker, "c");
}

TEST_F(TransferLedgerTest, DeadlinesCanBePutOffOnce) {
  Send(1);
  Receive(2);
  const absl::Time due = kStart + kTimeout;
  ledger_.Extend(due - absl::Milliseconds(1), kStart + 9 * kTimeout);
  EXPECT_EQ(ledger_.NextDeadline(), due) << "they were not due yet";
  ledger_.Extend(due, kStart + 2 * kTimeout);
  ledger_.Extend(kStart + 2 * kTimeout, kStart + 3 * kTimeout);
  EXPECT_TRUE(ledger_.Expire(kStart + kTimeout).ok());
  EXPECT_EQ(ledger_.NextDeadline(), kStart + 2 * kTimeout);
}

TEST_F(TransferLedgerTest, ZERO_17_LabelsThatDifferAreNamed) {
  Send(1, "x");
  const absl::Status asked = ledger_.Asked(1, 0, "y").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(asked));
  EXPECT_THAT(std::string(asked.message()), HasSubstr("with the label 'x'"));
  EXPECT_THAT(std::string(asked.message()), HasSubstr("with the label 'y'"));
  Asked(2, 0, "y");
  bool give = false;
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger_.Send(2, "x", kStart, kTimeout, &give).status()));
}

TEST_F(TransferLedgerTest, ARankThatLeavesFailsOnlyWhatWaitsForIt) {
  Send(1);
  EXPECT_TRUE(ledger_.Left(2).ok());
  EXPECT_THAT(std::string(ledger_.Left(1).message()),
              HasSubstr("rank 1 (b) has left before it received tensor 0 from rank 0 (a)"));
  Asked(1, 0);
  EXPECT_TRUE(ledger_.Left(1).ok());
  const uint64_t number = Receive(1);
  EXPECT_TRUE(ledger_.Left(1).ok()) << "what it has sent may be on its way";
  const absl::Status not_sent = ledger_.NotSent(1, number);
  EXPECT_TRUE(absl::IsFailedPrecondition(not_sent));
  EXPECT_THAT(std::string(not_sent.message()),
              HasSubstr("rank 1 (b) has left before it sent tensor 0"));
  EXPECT_EQ(GetDetail(not_sent)->worker, "b");
}

TEST_F(TransferLedgerTest, ASendIsNotGivenToARankThatHasStoppedWaiting) {
  EXPECT_FALSE(Asked(1, 0));
  ledger_.Forget(1, 0);
  EXPECT_FALSE(Send(1));
  EXPECT_FALSE(Asked(2, 0));
  EXPECT_TRUE(ledger_.Left(2).ok());
  EXPECT_FALSE(Send(2));
  EXPECT_FALSE(ledger_.Left(2).ok());
}

TEST_F(TransferLedgerTest, ASendThatWasNotTakenWaitsAgain) {
  Send(1, "x");
  EXPECT_TRUE(Asked(1, 0, "x"));
  EXPECT_FALSE(ledger_.Asked(1, 0, "x").ok()) << "it is being given";
  ledger_.NotTaken(1, 0);
  EXPECT_EQ(ledger_.NextDeadline(), kStart + kTimeout);
  EXPECT_FALSE(ledger_.Expire(kStart + kTimeout).ok());
  EXPECT_FALSE(ledger_.Left(1).ok());
  EXPECT_TRUE(Asked(1, 0, "x"));
  ledger_.Given(1, 0);
  Asked(1, 1);
  EXPECT_TRUE(Send(1));
  ledger_.NotTaken(1, 1);
  EXPECT_EQ(ledger_.NextDeadline(), kStart + kTimeout);
}

TEST_F(TransferLedgerTest, WhatIsWrongIsRefusedAndChangesNothing) {
  bool give = false;
  for (const int rank : {-1, 0, 3}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ledger_.Send(rank, "", kStart, kTimeout, &give).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(ledger_.Receive(rank, "", kStart, kTimeout).status()));
  }
  const std::string long_label(kMaxLabelBytes + 1, 'x');
  EXPECT_FALSE(ledger_.Send(1, long_label, kStart, kTimeout, &give).ok());
  EXPECT_FALSE(ledger_.Asked(1, 0, long_label).ok());
  EXPECT_FALSE(ledger_.Asked(1, TransferLedger::kMostWaiting, "").ok()) << "too far ahead";
  EXPECT_FALSE(Send(1));
  EXPECT_TRUE(Asked(1, 0));
  EXPECT_FALSE(ledger_.Asked(1, 0, "").ok()) << "given already";
  EXPECT_FALSE(Asked(1, 1));
  EXPECT_FALSE(ledger_.Asked(1, 1, "").ok()) << "asked for twice";
}

TEST_F(TransferLedgerTest, TooManyAreRefused) {
  bool give = false;
  for (size_t i = 0; i < TransferLedger::kMostWaiting; ++i) Send(1);
  EXPECT_EQ(ledger_.Send(1, "", kStart, kTimeout, &give).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Asked(1, 0));
  EXPECT_FALSE(Send(1));
}

}  // namespace
}  // namespace psd::services
