// What is borrowed from other workers, honest or not. Every loan is returned, whatever happens.

#include "core/device_loans/borrower.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
#include "tests/core/device_loans/crowded_device.h"

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
  // Ends the process of the lender. The next one has the same name, and other loans.
  void ForgetLender() {
    process_->End();
    process_ = std::make_shared<carrier::HostProcess>("process 3 of user 2");
    lent_.set_loan(lent_.loan() + 1);
  }
  bool Offers() const { return borrower_->OfferTo(kLender.incarnation, device_.get()).has_value(); }
  std::vector<uint64_t> Returned() const {
    MutexLock lock(mutex_);
    return returned_;
  }

  std::vector<uint64_t> Unused(const rpc::PeerInfo& lender, const std::vector<uint64_t>& recalled) {
    const absl::StatusOr<std::vector<uint64_t>> unused = borrower_->OnRecalled(lender, recalled);
    EXPECT_TRUE(unused.ok()) << unused.status();
    return unused.value_or(std::vector<uint64_t>());
  }

  // Blocks are returned on a thread of the device.
  std::vector<uint64_t> AwaitReturned(size_t count = 1) {
    MutexLock lock(mutex_);
    while (returned_.size() < count) changed_.Wait(mutex_);
    return returned_;
  }

  // Declared before the devices, whose threads use them until the devices end.
  mutable Mutex mutex_;  // leaf
  CondVar changed_;
  std::vector<uint64_t> returned_ PSD_GUARDED_BY(mutex_);
  const std::vector<std::byte> written_ = std::vector<std::byte>(kBytes, std::byte{9});
  const std::shared_ptr<EmulatedDevice> exporter_ = NewDevice(), importer_ = NewDevice();
  const std::shared_ptr<testing::CrowdedDevice> device_ =
      std::make_shared<testing::CrowdedDevice>(importer_);
  std::shared_ptr<carrier::HostProcess> process_ =
      std::make_shared<carrier::HostProcess>("process 1 of user 2");
  std::shared_ptr<Block> block_;
  v1::LentBlock lent_;
  v1::ShownDevice shown_;
  const std::shared_ptr<DeviceBorrower> borrower_ =
      std::make_shared<DeviceBorrower>(std::vector<std::shared_ptr<Device>>{device_},
                                       NewNullLogger(), [this](const DeviceBorrower::Ended& ended) {
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
    EXPECT_EQ(borrowed->place().device(), importer_.get());
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
  for (size_t i = 0; i < DeviceBorrower::kMostOfProcess; ++i) {
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
    wrong[i].set_loan(i + 1);
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

// The request that named the loan may still come.
TEST_F(BorrowerTest, ALoanThatWasRecalledIsReturnedAndNeverBorrowed) {
  ASSERT_TRUE(PassDevice().ok());
  EXPECT_THAT(Unused(kLender, {5}), ElementsAre(5));
  for (const uint64_t recalled : {5, 4, 1}) {
    lent_.set_loan(recalled);
    const auto borrowed = borrower_->Borrow(kLender, *device_, lent_);
    EXPECT_EQ(borrowed.status().code(), absl::StatusCode::kAborted) << borrowed.status();
  }
  EXPECT_THAT(Returned(), ElementsAre(5, 4, 1));
  EXPECT_THAT(Unused(kLender, {2}), ElementsAre(2));  // it has come late
  EXPECT_THAT(Unused(kLender, {5}), ElementsAre(5));  // its answer was lost
  // It says nothing about others.
  EXPECT_TRUE(Offers());
  lent_.set_loan(6);
  EXPECT_TRUE(borrower_->Borrow(kLender, *device_, lent_).ok());
}

TEST_F(BorrowerTest, ALoanInUseIsReturnedWhenItIsDropped) {
  ASSERT_TRUE(PassDevice().ok());
  {
    const auto borrowed = borrower_->Borrow(kLender, *device_, lent_);
    ASSERT_TRUE(borrowed.ok()) << borrowed.status();
    EXPECT_THAT(Unused(kLender, {4, 5, 6}), ElementsAre(4, 6));
    EXPECT_THAT(Returned(), IsEmpty());
    std::byte first{};
    ASSERT_TRUE(device_->CopyOut(&first, borrowed->data(), 1).ok());
    EXPECT_EQ(first, std::byte{9});
  }
  EXPECT_THAT(AwaitReturned(), ElementsAre(5));
  EXPECT_THAT(Unused(kLender, {5}), ElementsAre(5));
}

TEST_F(BorrowerTest, RecallsOfStrangersAndNumbersThatCannotBeChangeNothing) {
  ASSERT_TRUE(PassDevice().ok());
  EXPECT_THAT(Unused({"stranger", 78}, {5}), ElementsAre(5));
  EXPECT_THAT(Unused(kLender, {}), IsEmpty());
  EXPECT_TRUE(borrower_->Borrow(kLender, *device_, lent_).ok());
  EXPECT_THAT(AwaitReturned(), ElementsAre(5));
  constexpr uint64_t kLast = std::numeric_limits<uint64_t>::max();
  EXPECT_THAT(Unused(kLender, {kLast}), ElementsAre(kLast));
  lent_.set_loan(6);
  EXPECT_EQ(borrower_->Borrow(kLender, *device_, lent_).status().code(),
            absl::StatusCode::kAborted);
}

// The message that lends it may come after the link on which the lender shows its devices.
TEST_F(BorrowerTest, ALoanThatAStrangerHasRecalledIsNeverBorrowed) {
  EXPECT_THAT(Unused(kLender, {5}), ElementsAre(5));
  ASSERT_TRUE(PassDevice().ok());
  EXPECT_EQ(borrower_->Borrow(kLender, *device_, lent_).status().code(),
            absl::StatusCode::kAborted);
  // The next process has other loans.
  process_->End();
  shown_.set_incarnation(kLender.incarnation);
  const auto next = std::make_shared<carrier::HostProcess>("process 9 of user 2");
  ASSERT_TRUE(
      borrower_->OnPassed(next, shown_.SerializeAsString(), *exporter_->sharing()->Descriptor())
          .ok());
  EXPECT_TRUE(borrower_->Borrow(kLender, *device_, lent_).ok());
}

TEST_F(BorrowerTest, TheRecallsOfABoundedNumberOfStrangersAreRemembered) {
  for (size_t i = 0; i < DeviceBorrower::kMostStrangers; ++i)
    EXPECT_THAT(Unused({"stranger", 1000 + i}, {1}), ElementsAre(1));
  EXPECT_EQ(borrower_->OnRecalled(kLender, {5}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Unused({"stranger", 1000}, {7}), ElementsAre(7)) << "it is remembered already";
  ASSERT_TRUE(PassDevice().ok());
  EXPECT_TRUE(borrower_->Borrow(kLender, *device_, lent_).ok()) << "nothing was given back";
  EXPECT_THAT(Unused(kLender, {6}), ElementsAre(6)) << "it is no stranger any more";
}

TEST_F(BorrowerTest, ABlockThatWasLentToAnotherProcessIsNotBorrowed) {
  ASSERT_TRUE(PassDevice().ok());
  for (const char* key : {"", "the key of another process"}) {
    EXPECT_EQ(borrower_->Borrow(kLender, *device_, lent_, key).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_THAT(Returned(), IsEmpty()) << "it would be returned by another key";
  EXPECT_THAT(Unused(kLender, {4}), ElementsAre(4));
  EXPECT_TRUE(Offers()) << "it says nothing about what is lent to this process";
  EXPECT_TRUE(borrower_->Borrow(kLender, *device_, lent_, "the key").ok());
}

// The number 0 would return all loans of an offer.
TEST_F(BorrowerTest, ALoanWithoutANumberIsRefusedAndNotReturned) {
  ASSERT_TRUE(PassDevice().ok());
  lent_.set_loan(0);
  borrower_->Decline(kLender, lent_);
  EXPECT_EQ(borrower_->Borrow(kLender, *device_, lent_).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Returned(), IsEmpty());
  EXPECT_FALSE(Offers());
}

// A link that opens meanwhile passes the only descriptor that is left if there is no room.
TEST_F(BorrowerTest, ADescriptorThatComesWhileADeviceIsOpenedIsKeptIfThatFails) {
  ASSERT_TRUE(PassDevice().ok());
  device_->SetCrowded(true);
  device_->MeanwhileOpening([this] { ASSERT_TRUE(PassDevice().ok()); });
  EXPECT_EQ(borrower_->Borrow(kLender, *device_, lent_).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Offers());
  device_->SetCrowded(false);
  EXPECT_TRUE(borrower_->Borrow(kLender, *device_, lent_).ok());
}

// The lender's mistake does not pass with a link that opens meanwhile.
TEST_F(BorrowerTest, NonsenseThatComesWhileADeviceIsOpenedIsRemembered) {
  for (const bool crowded : {false, true}) {
    ASSERT_TRUE(PassDevice().ok());
    device_->SetCrowded(crowded);
    device_->MeanwhileOpening([this] {
      v1::LentBlock nonsense = lent_;
      nonsense.set_loan(0);
      EXPECT_FALSE(borrower_->Borrow(kLender, *device_, nonsense).ok());
      EXPECT_TRUE(PassDevice().ok());
    });
    EXPECT_EQ(borrower_->Borrow(kLender, *device_, lent_).ok(), !crowded);
    EXPECT_FALSE(Offers());
    ASSERT_TRUE(PassDevice().ok());
    EXPECT_FALSE(Offers());
    ForgetLender();
  }
}

TEST_F(BorrowerTest, ALackOfRoomHidesNoNonsense) {
  ASSERT_TRUE(PassDevice().ok());
  device_->SetCrowded(true);
  EXPECT_FALSE(borrower_->Borrow(kLender, *device_, lent_).ok());
  device_->SetCrowded(false);
  lent_.set_loan(0);
  EXPECT_EQ(borrower_->Borrow(kLender, *device_, lent_).status().code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(PassDevice().ok());
  EXPECT_FALSE(Offers());
}

TEST_F(BorrowerTest, ADescriptorThatComesWhileADeviceIsOpenedIsClosedIfNobodyNeedsIt) {
  for (const bool is_device : {true, false}) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd reader(ends[0]);
    UniqueFd writer(ends[1]);
    ASSERT_TRUE(is_device ? PassDevice().ok()
                          : Pass(UniqueFd(memfd_create("no device", MFD_CLOEXEC))).ok());
    device_->MeanwhileOpening([&] { EXPECT_TRUE(Pass(std::move(writer)).ok()); });
    EXPECT_EQ(borrower_->Borrow(kLender, *device_, lent_).ok(), is_device);
    EXPECT_FALSE(writer.valid());
    pollfd end = {reader.get(), 0, 0};
    EXPECT_EQ(poll(&end, 1, /*timeout=*/0), 1) << "it is still open";
    EXPECT_EQ(end.revents, POLLHUP);
    ForgetLender();
  }
}

// The descriptor is gone, but the system may have room when the next link opens.
TEST_F(BorrowerTest, ADeviceThatCouldNotBeOpenedForLackOfRoomIsTakenAgain) {
  ASSERT_TRUE(PassDevice().ok());
  device_->SetCrowded(true);
  EXPECT_EQ(borrower_->Borrow(kLender, *device_, lent_).status().code(),
            absl::StatusCode::kResourceExhausted);
  device_->SetCrowded(false);
  EXPECT_THAT(Returned(), ElementsAre(5));
  EXPECT_FALSE(Offers());
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(borrower_->Borrow(kLender, *device_, lent_).status().code(),
              absl::StatusCode::kFailedPrecondition)
        << "it does not pass by itself";
  }
  EXPECT_TRUE(borrower_->Knows(kLender.incarnation)) << "its loans are still returned";
  const auto liar = std::make_shared<carrier::HostProcess>("process 9 of user 2");
  ASSERT_TRUE(
      borrower_->OnPassed(liar, shown_.SerializeAsString(), *exporter_->sharing()->Descriptor())
          .ok());
  EXPECT_FALSE(Offers());
  ASSERT_TRUE(PassDevice().ok());
  EXPECT_TRUE(Offers());
  EXPECT_TRUE(borrower_->Borrow(kLender, *device_, lent_).ok());
}

// If it were returned now, its first user would read what the lender may write.
TEST_F(BorrowerTest, ALoanThatComesTwiceIsReturnedOnce) {
  ASSERT_TRUE(PassDevice().ok());
  {
    const auto borrowed = borrower_->Borrow(kLender, *device_, lent_);
    ASSERT_TRUE(borrowed.ok()) << borrowed.status();
    EXPECT_EQ(borrower_->Borrow(kLender, *device_, lent_).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Returned(), IsEmpty());
  }
  EXPECT_THAT(AwaitReturned(), ElementsAre(5));
}

TEST_F(BorrowerTest, TheProcessOfALenderIsKnownAsLongAsItLives) {
  EXPECT_EQ(borrower_->ProcessOf(kLender.incarnation, *device_), nullptr);
  ASSERT_TRUE(PassDevice().ok());
  EXPECT_EQ(borrower_->ProcessOf(kLender.incarnation, *device_), process_);
  EXPECT_EQ(borrower_->ProcessOf(78, *device_), nullptr);
  process_->End();
  EXPECT_EQ(borrower_->ProcessOf(kLender.incarnation, *device_), nullptr);
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
