// What is borrowed from other workers, honest or not. Every loan is returned, whatever happens.

#include "core/device_loans/borrower.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/buffer.h"
#include "core/base/device_sharing.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/carrier/passed_descriptors.h"
#include "core/device/emulated/emulated_device.h"
#include "core/rpc/rpc_agent.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::device_loans {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const rpc::PeerInfo kLender = {"lender", 77};
constexpr size_t kBytes = 1000;

std::shared_ptr<EmulatedDevice> NewDevice() {
  EmulatedDeviceOptions options;
  options.budget_bytes = size_t{1} << 20;
  options.shareable = true;
  return (*EmulatedDevice::Create(1, options))[0];
}

class BorrowerTest : public ::testing::Test {
 protected:
  BorrowerTest() {
    const std::shared_ptr<Block> block = *exporter_->memory().Allocate(kBytes);
    block_ = block;
    EXPECT_TRUE(exporter_->CopyIn(block->data(), written_.data(), kBytes).ok());
    lent_.set_handle(*exporter_->sharing()->Export(*block));
    lent_.set_block_bytes(kBytes);
    lent_.set_offset(100);
    lent_.set_bytes(200);
    lent_.set_loan(5);
    shown_.set_incarnation(kLender.incarnation);
    shown_.set_key("the key");
    shown_.set_device(3);
    shown_.set_identity(exporter_->sharing()->identity());
  }

  absl::Status Pass(UniqueFd fd) {
    return borrower_->OnPassed(process_, shown_.SerializeAsString(), std::move(fd));
  }
  absl::Status PassDevice() { return Pass(*exporter_->sharing()->Descriptor()); }
  bool Offers() const { return borrower_->OfferTo(kLender.incarnation, device_.get()).has_value(); }
  std::vector<uint64_t> Returned() const {
    MutexLock lock(mutex_);
    return returned_;
  }

  // Blocks are returned on a thread of the device.
  std::vector<uint64_t> AwaitReturned() {
    MutexLock lock(mutex_);
    while (returned_.empty()) changed_.Wait(mutex_);
    return returned_;
  }

  // Declared before the devices, whose threads use them until the devices end.
  mutable Mutex mutex_;  // leaf
  CondVar changed_;
  std::vector<uint64_t> returned_ PSD_GUARDED_BY(mutex_);
  const std::vector<std::byte> written_ = std::vector<std::byte>(kBytes, std::byte{9});
  const std::shared_ptr<EmulatedDevice> exporter_ = NewDevice(), device_ = NewDevice();
  const std::shared_ptr<carrier::HostProcess> process_ =
      std::make_shared<carrier::HostProcess>("process 1 of user 2");
  std::shared_ptr<Block> block_;
  v1::LentBlock lent_;
  v1::ShownDevice shown_;
  const std::shared_ptr<Borrower> borrower_ =
      std::make_shared<Borrower>(std::vector<std::shared_ptr<Device>>{device_}, NewNullLogger(),
                                 [this](const Borrower::Ended& ended) {
                                   EXPECT_EQ(ended.lender, kLender);
                                   EXPECT_EQ(ended.key, "the key");
                                   MutexLock lock(mutex_);
                                   returned_.push_back(ended.loan + ended.offer);
                                   changed_.NotifyAll();
                                 });
};

TEST_F(BorrowerTest, ABlockIsReadInPlaceAndReturnedOnce) {
  ASSERT_TRUE(PassDevice().ok());
  const auto offer = borrower_->OfferTo(kLender.incarnation, device_.get());
  ASSERT_TRUE(offer.has_value());
  EXPECT_EQ(offer->key(), "the key");
  EXPECT_EQ(offer->device(), 3u);
  EXPECT_EQ(borrower_->WhyNot(kLender.incarnation, *device_), "");
  {
    const auto borrowed = borrower_->Borrow(kLender, *device_, lent_);
    ASSERT_TRUE(borrowed.ok()) << borrowed.status();
    EXPECT_EQ(borrowed->size(), 200u);
    EXPECT_EQ(borrowed->place().device(), device_.get());
    std::vector<std::byte> read(200);
    ASSERT_TRUE(device_->CopyOut(read.data(), borrowed->data(), read.size()).ok());
    EXPECT_EQ(read, std::vector<std::byte>(200, std::byte{9}));
    EXPECT_THAT(Returned(), IsEmpty());
  }
  EXPECT_THAT(AwaitReturned(), ElementsAre(5));
}

TEST_F(BorrowerTest, OnlyDevicesOfThisWorkerAreKept) {
  EXPECT_FALSE(Offers());
  EXPECT_NE(borrower_->WhyNot(kLender.incarnation, *device_), "");
  shown_.set_identity("emulated:elsewhere:0");
  EXPECT_TRUE(PassDevice().ok());
  EXPECT_FALSE(Offers());
  EXPECT_FALSE(borrower_->OfferTo(kLender.incarnation, nullptr).has_value());
}

TEST_F(BorrowerTest, NamesThatAreNonsenseAreRefused) {
  for (const std::string& name :
       {std::string(), std::string("\xff\xff\xff"), std::string(512, 'x')}) {
    const absl::Status refused =
        borrower_->OnPassed(process_, name, *exporter_->sharing()->Descriptor());
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  }
}

TEST_F(BorrowerTest, AProcessShowsABoundedNumberOfDevices) {
  for (size_t i = 0; i < Borrower::kMostOfProcess; ++i) {
    shown_.set_incarnation(1000 + i);
    ASSERT_TRUE(PassDevice().ok());
    ASSERT_TRUE(PassDevice().ok()) << "the same once more";
  }
  shown_.set_incarnation(1);
  EXPECT_TRUE(PassDevice().ok()) << "the link goes on";
  EXPECT_FALSE(borrower_->OfferTo(1, device_.get()).has_value());
  EXPECT_TRUE(borrower_->OfferTo(1000, device_.get()).has_value());
}

TEST_F(BorrowerTest, ADescriptorOfAnotherFileIsFoundOutAndNotUsedAgain) {
  ASSERT_TRUE(Pass(UniqueFd(memfd_create("no device", MFD_CLOEXEC))).ok());
  ASSERT_TRUE(Offers());
  EXPECT_EQ(borrower_->Borrow(kLender, *device_, lent_).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Returned(), ElementsAre(5));
  EXPECT_FALSE(Offers());
  EXPECT_NE(borrower_->WhyNot(kLender.incarnation, *device_), "");
  // The next one of an answer that was under way.
  lent_.set_loan(6);
  EXPECT_FALSE(borrower_->Borrow(kLender, *device_, lent_).ok());
  EXPECT_THAT(Returned(), ElementsAre(5, 6));
}

TEST_F(BorrowerTest, LoansThatAreNonsenseAreReturned) {
  std::vector<v1::LentBlock> wrong(7, lent_);
  wrong[0].set_bytes(0);
  wrong[1].set_offset(900);
  wrong[2].set_offset(std::numeric_limits<uint64_t>::max());
  wrong[3].set_bytes(std::numeric_limits<uint64_t>::max());
  wrong[4].set_handle(std::string(DeviceSharing::kMostHandleBytes + 1, 'h'));
  wrong[5].set_handle("h");
  wrong[6].set_block_bytes(std::numeric_limits<uint64_t>::max());
  for (size_t i = 0; i < wrong.size(); ++i) {
    shown_.set_incarnation(kLender.incarnation);
    const auto fresh = std::make_shared<carrier::HostProcess>("process 9 of user 2");
    ASSERT_TRUE(
        borrower_->OnPassed(fresh, shown_.SerializeAsString(), *exporter_->sharing()->Descriptor())
            .ok());
    wrong[i].set_loan(i);
    const auto borrowed = borrower_->Borrow(kLender, *device_, wrong[i]);
    EXPECT_EQ(borrowed.status().code(), absl::StatusCode::kInvalidArgument)
        << i << ": " << borrowed.status();
    EXPECT_EQ(Returned().size(), i + 1);
    EXPECT_FALSE(Offers()) << i;
    fresh->End();
  }
}

TEST_F(BorrowerTest, WhatIsDeclinedIsReturned) {
  borrower_->Decline(kLender, lent_);
  EXPECT_THAT(Returned(), IsEmpty()) << "nobody has shown anything";
  ASSERT_TRUE(PassDevice().ok());
  borrower_->Decline(kLender, lent_);
  EXPECT_THAT(Returned(), ElementsAre(5));
}

TEST_F(BorrowerTest, OffersHaveNumbersOfTheirOwnByWhichTheyAreWithdrawn) {
  ASSERT_TRUE(PassDevice().ok());
  const auto first = borrower_->OfferTo(kLender.incarnation, device_.get());
  const auto second = borrower_->OfferTo(kLender.incarnation, device_.get());
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_NE(first->number(), second->number());
  borrower_->Withdraw(kLender, *second);
  EXPECT_THAT(Returned(), ElementsAre(second->number()));
}

TEST_F(BorrowerTest, TheEndOfAProcessEndsItsOffers) {
  ASSERT_TRUE(PassDevice().ok());
  EXPECT_TRUE(borrower_->Knows(kLender.incarnation));
  auto borrowed = borrower_->Borrow(kLender, *device_, lent_);
  ASSERT_TRUE(borrowed.ok()) << borrowed.status();
  process_->End();
  EXPECT_FALSE(Offers());
  EXPECT_FALSE(borrower_->Knows(kLender.incarnation));
  EXPECT_EQ(borrower_->Borrow(kLender, *device_, lent_).status().code(),
            absl::StatusCode::kUnavailable);
  // What was borrowed is still there.
  std::byte first{};
  ASSERT_TRUE(device_->CopyOut(&first, borrowed->data(), 1).ok());
  EXPECT_EQ(first, std::byte{9});
  *borrowed = Buffer();
  EXPECT_THAT(AwaitReturned(), ElementsAre(5));
}

}  // namespace
}  // namespace psd::device_loans
