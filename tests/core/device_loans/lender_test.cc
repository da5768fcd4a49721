// What is lent to processes, by whom they are told apart, and when a loan ends.

#include "core/device_loans/lender.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/device_sharing.h"
#include "core/base/log.h"
#include "core/carrier/passed_descriptors.h"
#include "core/device/emulated/emulated_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::device_loans {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Incarnation kSelf = 77;
constexpr size_t kBudget = size_t{1} << 20;
constexpr size_t kMost = kBudget / Lender::kLentFraction;

class LenderTest : public ::testing::Test {
 protected:
  LenderTest() {
    EmulatedDeviceOptions options;
    options.budget_bytes = kBudget;
    options.shareable = true;
    const auto devices = EmulatedDevice::Create(2, options);
    EXPECT_TRUE(devices.ok()) << devices.status();
    devices_.assign(devices->begin(), devices->end());
    lender_ = std::make_shared<Lender>(kSelf, devices_, NewNullLogger());
  }

  // Returns what the process is told about device `device`.
  v1::ShownDevice Show(const std::shared_ptr<carrier::HostProcess>& process, size_t device = 0) {
    const auto descriptors = lender_->ForPeer(process);
    EXPECT_EQ(descriptors.size(), devices_.size());
    v1::ShownDevice shown;
    EXPECT_TRUE(shown.ParseFromString(descriptors.at(device).name));
    return shown;
  }
  static v1::BorrowOffer OfferOf(const v1::ShownDevice& shown) {
    v1::BorrowOffer offer;
    offer.set_key(shown.key());
    offer.set_device(shown.device());
    return offer;
  }
  Buffer NewBuffer(size_t bytes, size_t device = 0) {
    auto block = devices_[device]->memory().Allocate(bytes);
    EXPECT_TRUE(block.ok()) << block.status();
    return Buffer(*block);
  }
  size_t loans() const {
    size_t sum = 0;
    for (const Lent& one : lender_->lent()) sum += one.loans;
    return sum;
  }

  std::vector<std::shared_ptr<Device>> devices_;
  std::shared_ptr<Lender> lender_;
  const std::shared_ptr<carrier::HostProcess> process_ =
      std::make_shared<carrier::HostProcess>("process 1 of user 2");
};

TEST_F(LenderTest, AProcessIsShownAllDevicesAlwaysWithTheSameKey) {
  const v1::ShownDevice first = Show(process_), second = Show(process_, 1);
  EXPECT_EQ(first.incarnation(), kSelf);
  EXPECT_EQ(first.identity(), devices_[0]->sharing()->identity());
  EXPECT_EQ(second.identity(), devices_[1]->sharing()->identity());
  EXPECT_NE(first.device(), second.device());
  EXPECT_THAT(first.key(), SizeIs(16));
  EXPECT_EQ(first.key(), second.key());
  EXPECT_EQ(Show(process_).key(), first.key());
  const auto other = std::make_shared<carrier::HostProcess>("process 3 of user 2");
  EXPECT_NE(Show(other).key(), first.key());
}

TEST_F(LenderTest, ALoanHoldsItsBufferUntilItIsReturned) {
  const v1::BorrowOffer offer = OfferOf(Show(process_));
  EXPECT_EQ(lender_->DeviceOf(offer), devices_[0].get());
  auto blocks = [&] {
    const Buffer whole = NewBuffer(1000);
    return lender_->Lend(offer, {whole.Slice(100, 200)});
  }();
  ASSERT_THAT(blocks, SizeIs(1));
  EXPECT_EQ(blocks[0].number(), 0u);
  EXPECT_EQ(blocks[0].block_bytes(), 1000u);
  EXPECT_EQ(blocks[0].offset(), 100u);
  EXPECT_EQ(blocks[0].bytes(), 200u);
  EXPECT_FALSE(blocks[0].handle().empty());
  EXPECT_GT(devices_[0]->used_bytes(), 0u);
  const std::vector<Lent> lent = lender_->lent();
  ASSERT_THAT(lent, SizeIs(1));
  EXPECT_EQ(lent[0].process, "process 1 of user 2");
  EXPECT_EQ(lent[0].bytes, 200u);
  for (int times = 0; times < 2; ++times) {
    lender_->Return(offer.key(), {blocks[0].loan()});
    EXPECT_THAT(lender_->lent(), IsEmpty());
    EXPECT_EQ(devices_[0]->used_bytes(), 0u);
  }
}

TEST_F(LenderTest, OnlyBuffersOfTheDeviceThatIsMeantAreLent) {
  const v1::BorrowOffer offer = OfferOf(Show(process_, 1));
  const auto blocks = lender_->Lend(
      offer, {NewBuffer(10, 0), NewBuffer(20, 1), Buffer::FromString("host"), NewBuffer(30, 1)});
  ASSERT_THAT(blocks, SizeIs(2));
  EXPECT_EQ(blocks[0].number(), 1u);
  EXPECT_EQ(blocks[1].number(), 3u);
}

TEST_F(LenderTest, NothingIsLentToWhomNothingWasShown) {
  v1::BorrowOffer offer = OfferOf(Show(process_));
  const Buffer buffer = NewBuffer(10);
  for (const std::string& key : {std::string(), std::string(16, '\0'), std::string(999, 'k')}) {
    v1::BorrowOffer other = offer;
    other.set_key(key);
    EXPECT_THAT(lender_->Lend(other, {buffer}), IsEmpty());
  }
  offer.set_device(2);
  EXPECT_EQ(lender_->DeviceOf(offer), nullptr);
  EXPECT_THAT(lender_->Lend(offer, {buffer}), IsEmpty());
}

// For requests of the lender, which no offer has asked for.
TEST_F(LenderTest, AProcessThatWasShownADeviceCanBorrowWithoutAnOffer) {
  EXPECT_FALSE(lender_->OfferOf(process_, *devices_[1]).has_value());
  const v1::ShownDevice shown = Show(process_, 1);
  const auto offer = lender_->OfferOf(process_, *devices_[1]);
  ASSERT_TRUE(offer.has_value());
  EXPECT_EQ(offer->key(), shown.key());
  EXPECT_EQ(lender_->DeviceOf(*offer), devices_[1].get());
  EXPECT_THAT(lender_->Lend(*offer, {NewBuffer(10, 1)}), SizeIs(1));
  EXPECT_FALSE(lender_->OfferOf(nullptr, *devices_[1]).has_value());
  const auto other = EmulatedDevice::Create(1, {});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(lender_->OfferOf(process_, *(*other)[0]).has_value());
  process_->End();
  EXPECT_FALSE(lender_->OfferOf(process_, *devices_[1]).has_value());
}

TEST_F(LenderTest, OthersCannotReturnALoan) {
  const v1::BorrowOffer offer = OfferOf(Show(process_));
  const auto other = std::make_shared<carrier::HostProcess>("process 3 of user 2");
  const v1::BorrowOffer others = OfferOf(Show(other));
  const auto blocks = lender_->Lend(offer, {NewBuffer(10)});
  ASSERT_THAT(blocks, SizeIs(1));
  lender_->Return(others.key(), {blocks[0].loan()});
  lender_->Return("", {blocks[0].loan()});
  lender_->Return(offer.key(), {0, blocks[0].loan() + 1, std::numeric_limits<uint64_t>::max()});
  EXPECT_EQ(loans(), 1u);
}

TEST_F(LenderTest, LoansThatNobodyHasBorrowedAreTakenBackWithoutAKey) {
  const v1::BorrowOffer offer = OfferOf(Show(process_));
  const auto blocks = lender_->Lend(offer, {NewBuffer(10), NewBuffer(20)});
  ASSERT_THAT(blocks, SizeIs(2));
  for (int times = 0; times < 2; ++times) {
    lender_->TakeBack({blocks[0].loan(), blocks[1].loan() + 1, 0});
    ASSERT_THAT(lender_->lent(), SizeIs(1));
    EXPECT_EQ(lender_->lent()[0].bytes, 20u);
  }
  lender_->TakeBack({blocks[1].loan()});
  EXPECT_THAT(lender_->lent(), IsEmpty());
  EXPECT_EQ(devices_[0]->used_bytes(), 0u);
}

TEST_F(LenderTest, AllLoansOfAnOfferAreReturnedTogether) {
  v1::BorrowOffer offer = OfferOf(Show(process_));
  offer.set_number(7);
  EXPECT_THAT(lender_->Lend(offer, {NewBuffer(10), NewBuffer(20)}), SizeIs(2));
  offer.set_number(8);
  EXPECT_THAT(lender_->Lend(offer, {NewBuffer(40)}), SizeIs(1));
  lender_->Return(OfferOf(Show(std::make_shared<carrier::HostProcess>("another"))).key(), {}, {7});
  EXPECT_EQ(loans(), 3u);
  for (int times = 0; times < 2; ++times) {
    lender_->Return(offer.key(), {}, {7, 9});
    EXPECT_EQ(loans(), 1u);
    EXPECT_EQ(lender_->lent()[0].bytes, 40u);
  }
}

TEST_F(LenderTest, TheEndOfAProcessEndsItsLoansAndNoOthers) {
  const v1::BorrowOffer offer = OfferOf(Show(process_));
  const auto other = std::make_shared<carrier::HostProcess>("process 3 of user 2");
  const v1::BorrowOffer others = OfferOf(Show(other));
  const Buffer shared = NewBuffer(10);
  lender_->Lend(offer, {shared, NewBuffer(20)});
  lender_->Lend(others, {shared});
  process_->End();
  ASSERT_THAT(lender_->lent(), SizeIs(1));
  EXPECT_EQ(lender_->lent()[0].process, "process 3 of user 2");
  EXPECT_THAT(lender_->Lend(offer, {shared}), IsEmpty());
  other->End();
  EXPECT_THAT(lender_->lent(), IsEmpty());
}

// A process that has ended gets no key that would never be forgotten.
TEST_F(LenderTest, AProcessThatHasEndedBorrowsNothing) {
  process_->End();
  const v1::BorrowOffer offer = OfferOf(Show(process_));
  EXPECT_THAT(lender_->Lend(offer, {NewBuffer(10)}), IsEmpty());
}

TEST_F(LenderTest, AProcessBorrowsABoundedNumberOfBytesOfEachDevice) {
  const v1::BorrowOffer offer = OfferOf(Show(process_));
  const Buffer most = NewBuffer(kMost);
  EXPECT_THAT(lender_->Lend(offer, {NewBuffer(kMost + 1)}), IsEmpty());
  const auto blocks = lender_->Lend(offer, {most, NewBuffer(1)});
  ASSERT_THAT(blocks, SizeIs(1));
  EXPECT_THAT(lender_->Lend(OfferOf(Show(process_, 1)), {NewBuffer(kMost, 1)}), SizeIs(1));
  lender_->Return(offer.key(), {blocks[0].loan()});
  EXPECT_THAT(lender_->Lend(offer, {most}), SizeIs(1));
}

TEST_F(LenderTest, AProcessBorrowsABoundedNumberOfBlocks) {
  const v1::BorrowOffer offer = OfferOf(Show(process_));
  const std::vector<Buffer> many(Lender::kMostLoans + 1, NewBuffer(1));
  EXPECT_THAT(lender_->Lend(offer, many), SizeIs(Lender::kMostLoans));
  EXPECT_THAT(lender_->Lend(offer, {many[0]}), IsEmpty());
}

}  // namespace
}  // namespace psd::device_loans
