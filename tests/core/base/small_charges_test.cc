#include "core/base/small_charges.h"

#include <atomic>
#include <memory>
#include <thread>

#include "core/base/thread_modes.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

constexpr size_t kStep = kSmallChargeStep;

class FakeAccount : public SmallCharges {
 public:
  absl::Status Take(size_t bytes, bool modest) override {
    if (used + bytes > (modest ? modest_limit : limit)) {
      return absl::ResourceExhaustedError("full");
    }
    used += bytes;
    return absl::OkStatus();
  }
  void Add(size_t bytes) override { used += bytes; }
  void Credit(size_t bytes) override { used -= bytes; }

  std::atomic<size_t> used{0};
  size_t limit = 100 * kStep;
  size_t modest_limit = 100 * kStep;
};

class SmallChargesTest : public ::testing::Test {
 protected:
  // Runs the work on a new thread, which has not moved any charges yet.
  template <typename Work>
  static void OnAThread(const Work& work) {
    std::thread([&] {
      BeginSmallCharges();
      work();
    }).join();
  }

  const std::shared_ptr<FakeAccount> account_ = std::make_shared<FakeAccount>();
  const SmallChargesId id_ = KeepSmallCharges(account_);
};

TEST_F(SmallChargesTest, PiecesAreMovedInSteps) {
  OnAThread([&] {
    EXPECT_TRUE(ChargeSmallPiece(id_, kStep - 1).ok());
    EXPECT_EQ(account_->used, 0u);
    EXPECT_TRUE(ChargeSmallPiece(id_, 1).ok());
    EXPECT_EQ(account_->used, kStep);
    CreditSmallPiece(id_, kStep - 1);
    EXPECT_EQ(account_->used, kStep);
    CreditSmallPiece(id_, 1);
    EXPECT_EQ(account_->used, 0u);
  });
}

TEST_F(SmallChargesTest, AThreadMovesTheRestWhenItEnds) {
  OnAThread([&] { EXPECT_TRUE(ChargeSmallPiece(id_, 300).ok()); });
  EXPECT_EQ(account_->used, 300u);
  OnAThread([&] { CreditSmallPiece(id_, 300); });
  EXPECT_EQ(account_->used, 0u);
}

TEST_F(SmallChargesTest, AThreadMovesTheRestWhenItWorksForAnotherAccount) {
  const auto other = std::make_shared<FakeAccount>();
  const SmallChargesId other_id = KeepSmallCharges(other);
  OnAThread([&] {
    EXPECT_TRUE(ChargeSmallPiece(id_, 300).ok());
    EXPECT_TRUE(ChargeSmallPiece(other_id, 500).ok());
    EXPECT_EQ(account_->used, 300u);
    CreditSmallPiece(id_, 300);
    EXPECT_EQ(account_->used, 0u);
    EXPECT_EQ(other->used, 0u) << "the sum for the other stays together";
  });
  EXPECT_EQ(account_->used, 0u);
  EXPECT_EQ(other->used, 500u);
}

TEST_F(SmallChargesTest, WhatTasksLeaveIsCheckedAfterAStep) {
  account_->limit = account_->modest_limit = kStep / 2;
  OnAThread([&] {
    int charged = 0;
    while (charged < 10 && ChargeSmallPiece(id_, kStep / 4).ok()) {
      ++charged;
      EndSmallCharges();
    }
    EXPECT_EQ(charged, 4);
    account_->limit = account_->modest_limit = 100 * kStep;
    EXPECT_TRUE(ChargeSmallPiece(id_, kStep / 4).ok());
  });
  EXPECT_EQ(account_->used, 5 * kStep / 4);
}

TEST_F(SmallChargesTest, APieceWithReservedRoomIsChargedAtOnce) {
  account_->limit = account_->modest_limit = 0;
  OnAThread([&] {
    AddSmallPiece(id_, 10);
    EXPECT_EQ(account_->used, 10u);
    CreditSmallPiece(id_, 10);
  });
  EXPECT_EQ(account_->used, 0u);
}

TEST_F(SmallChargesTest, ARefusedPieceChangesNothing) {
  account_->limit = account_->modest_limit = 0;
  OnAThread([&] {
    EXPECT_TRUE(ChargeSmallPiece(id_, kStep - 100).ok());
    EXPECT_EQ(ChargeSmallPiece(id_, 100).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(ChargeSmallPiece(id_, 99).ok());
  });
  EXPECT_EQ(account_->used, kStep - 1);
}

TEST_F(SmallChargesTest, OnlyWorkThatHasTakenLittleUsesTheShareForSmallCalls) {
  account_->limit = 0;
  OnAThread([&] {
    size_t taken = 0;
    while (ChargeSmallPiece(id_, kStep).ok()) taken += kStep;
    EXPECT_EQ(taken, 4 * kStep);
    BeginSmallCharges();
    EXPECT_TRUE(ChargeSmallPiece(id_, kStep).ok());
  });
}

TEST_F(SmallChargesTest, WorkForOthersMeanwhileDoesNotRenewTheShareOfATask) {
  account_->limit = 0;
  OnAThread([&] {
    while (ChargeSmallPiece(id_, kStep).ok()) {
    }
    {
      const FreshThreadModes fresh;
      EXPECT_TRUE(ChargeSmallPiece(id_, kStep).ok());
      BeginSmallCharges();
    }
    EXPECT_FALSE(ChargeSmallPiece(id_, kStep).ok());
  });
}

}  // namespace
}  // namespace psd
