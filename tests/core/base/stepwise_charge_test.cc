#include "core/base/stepwise_charge.h"

#include <memory>

#include "gtest/gtest.h"

namespace psd {
namespace {

class StepwiseChargeTest : public ::testing::Test {
 protected:
  const std::shared_ptr<MemoryAccount> account_ = MemoryAccount::Create(1000, NewHeapAllocator());
};

TEST_F(StepwiseChargeTest, ChargesInSteps) {
  StepwiseCharge charge(100);
  EXPECT_TRUE(charge.Add(*account_, 1).ok());
  EXPECT_EQ(account_->used_bytes(), 100u);
  EXPECT_TRUE(charge.Add(*account_, 99).ok());
  EXPECT_EQ(account_->used_bytes(), 100u);
  EXPECT_TRUE(charge.Add(*account_, 250).ok());
  EXPECT_EQ(account_->used_bytes(), 350u);
  EXPECT_EQ(charge.bytes(), 350u);
}

TEST_F(StepwiseChargeTest, KeepsOneStepUntilNothingIsLeft) {
  StepwiseCharge charge(100);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(charge.Add(*account_, 100).ok());
  charge.Subtract(100);
  EXPECT_EQ(account_->used_bytes(), 300u);
  charge.Subtract(100);
  EXPECT_EQ(account_->used_bytes(), 200u);
  charge.Subtract(100);
  EXPECT_EQ(account_->used_bytes(), 0u);
}

TEST_F(StepwiseChargeTest, WhatIsPaidElsewhereIsNotCharged) {
  StepwiseCharge charge(100, 50);
  EXPECT_TRUE(charge.Add(*account_, 50).ok());
  EXPECT_EQ(account_->used_bytes(), 0u);
  EXPECT_TRUE(charge.Add(*account_, 1).ok());
  EXPECT_EQ(account_->used_bytes(), 100u);
  charge.Subtract(51);
  EXPECT_EQ(account_->used_bytes(), 0u);
}

TEST_F(StepwiseChargeTest, ARefusalChangesNothing) {
  StepwiseCharge charge(100);
  ASSERT_TRUE(charge.Add(*account_, 950).ok());
  EXPECT_EQ(charge.Add(*account_, 10).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(charge.bytes(), 950u);
  EXPECT_EQ(account_->used_bytes(), 950u);
}

TEST_F(StepwiseChargeTest, IsCreditedWhenItIsDestroyed) {
  { ASSERT_TRUE(StepwiseCharge(100).Add(*account_, 10).ok()); }
  EXPECT_EQ(account_->used_bytes(), 0u);
}

}  // namespace
}  // namespace psd
