#include "core/carrier/shm/lending/borrower.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "core/carrier/shm/lending/limits.h"
#include "core/carrier/shm/poller.h"
#include "tests/core/carrier/lending/segment_buffer.h"
#include "tests/core/carrier/lending/slow_executor.h"

namespace psd::carrier {
namespace {

constexpr size_t kPage = 4096;

class BorrowerTest : public testing::Test {
 protected:
  // The descriptor of a segment, as it is received.
  static UniqueFd FdOf(const SharedSegment& segment) { return UniqueFd(dup(segment.fd())); }
  absl::StatusOr<bool> Pass(const SharedSegment& segment) {
    return borrower_.OnSegment({segment.id(), segment.bytes()}, FdOf(segment));
  }
  // Hands over a lent frame with the header "h". Buffers in no segment have the byte 'i'.
  absl::StatusOr<Borrower::Outcome> Lend(uint64_t lease, const std::vector<LentBuffer>& buffers) {
    std::string inside = "h";
    for (const LentBuffer& buffer : buffers) {
      if (buffer.segment == 0) inside.append(buffer.bytes, 'i');
    }
    const absl::string_view bytes = inside;
    LentFrame frame;
    frame.lease = lease;
    frame.header_bytes = 1;
    frame.buffers = buffers;
    frame.payload = ByteReader(absl::MakeConstSpan(&bytes, 1));
    return borrower_.OnLent(frame);
  }
  // Returns the message of a frame that is not parked.
  Message Get(uint64_t lease, const std::vector<LentBuffer>& buffers) {
    auto outcome = Lend(lease, buffers);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_TRUE(outcome->message.has_value());
    return *std::move(outcome->message);
  }
  void ExpectParked(uint64_t lease, const std::vector<LentBuffer>& buffers) {
    const auto outcome = Lend(lease, buffers);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_FALSE(outcome->message.has_value() || outcome->refused.has_value() ||
                 outcome->declined.has_value());
  }
  template <typename T>
  static void ExpectWrong(const absl::StatusOr<T>& result, const std::string& why) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(result.status().message(), why)) << result.status();
  }
  // `page` is the first byte of a page.
  static bool IsMapped(const void* page) {
    unsigned char resident = 0;
    return mincore(const_cast<void*>(page), kPage, &resident) == 0;
  }
  std::vector<uint64_t> TakeReturned() { return notes_->TakeAll().returned; }

  const std::unique_ptr<ShmPoller> poller_ = *ShmPoller::Create("a test");
  const std::shared_ptr<NoteBox> notes_ = std::make_shared<NoteBox>(poller_->bell());
  const std::shared_ptr<Quota> of_peer_ = std::make_shared<Quota>(2, 10 * kPage);
  const std::shared_ptr<Quota> of_carrier_ = std::make_shared<Quota>(9, 9 * kPage);
  const std::shared_ptr<MemoryAccount> account_ =
      MemoryAccount::Create(1 << 20, NewHeapAllocator());
  const std::shared_ptr<SlowExecutor> unmapper_ = std::make_shared<SlowExecutor>();
  Borrower borrower_{notes_, of_peer_, of_carrier_, unmapper_, ReceiveMemory{account_, account_}};
};

TEST_F(BorrowerTest, AMessageLiesInTheMappingUntilItsLastSliceGoes) {
  const auto segment = NewSegment(kPage);
  std::memset(segment->data(), 'a', kPage);
  ASSERT_FALSE(*Pass(*segment));
  Message message = Get(7, {{0, 0, 3}, {segment->id(), 64, 100}, {segment->id(), 0, kPage}});
  EXPECT_EQ(message.header, "h");
  ASSERT_EQ(message.buffers.size(), 3u);
  EXPECT_EQ(message.buffers[0].view(), "iii");
  EXPECT_EQ(message.buffers[0].place().kind(), MemoryPlace::Kind::kHeap);
  EXPECT_EQ(message.buffers[1].view(), std::string(100, 'a'));
  EXPECT_EQ(message.buffers[1].place().kind(), MemoryPlace::Kind::kForeign);
  EXPECT_EQ(message.buffers[2].size(), kPage);
  EXPECT_EQ(message.buffers[1].data(), message.buffers[2].data() + 64);
  Buffer slice = message.buffers[1].Slice(10, 5);
  message = Message();
  EXPECT_TRUE(notes_->empty());
  slice = Buffer();
  EXPECT_EQ(TakeReturned(), std::vector<uint64_t>{7});
  EXPECT_EQ(of_peer_->things(), 1u) << "the segment is kept for later messages";
}

TEST_F(BorrowerTest, AMessageWaitsForItsDescriptorsAndNothingElseDoes) {
  const auto first = NewSegment(kPage);
  const auto second = NewSegment(kPage);
  ExpectParked(1, {{first->id(), 0, 64}, {second->id(), 0, 64}});
  ASSERT_TRUE(Pass(*second).ok());
  EXPECT_TRUE(borrower_.HasNews());
  EXPECT_TRUE(borrower_.TakeReady()->empty());
  EXPECT_FALSE(borrower_.HasNews());
  Get(2, {{second->id(), 0, 64}});
  ASSERT_TRUE(Pass(*first).ok());
  auto ready = borrower_.TakeReady();
  ASSERT_TRUE(ready.ok()) << ready.status();
  ASSERT_EQ(ready->size(), 1u);
  EXPECT_EQ((*ready)[0].message->buffers.size(), 2u);
  EXPECT_EQ((*ready)[0].borrowed_bytes, 128u);
}

TEST_F(BorrowerTest, AMessageWhoseDescriptorNeverComesIsAStall) {
  ExpectParked(1, {{5, 0, 64}});
  EXPECT_TRUE(borrower_.LookForStall().ok());
  EXPECT_EQ(borrower_.LookForStall().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(BorrowerTest, WhatLiesOutsideASegmentIsNotRead) {
  const auto segment = NewSegment(kPage);
  ASSERT_TRUE(Pass(*segment).ok());
  const uint64_t id = segment->id();
  Get(1, {{id, kPage - 64, 64}});
  ExpectWrong(Lend(2, {{id, kPage - 64, 65}}), "65 bytes at 4032 of segment");
  ExpectWrong(Lend(3, {{id, kPage + 64, 0}}), "0 bytes at 4160");
  ExpectWrong(Lend(4, {{id, UINT64_MAX - 63, 128}}), "128 bytes at 18446744073709551552");
  ExpectWrong(Lend(5, {{id, 64, SIZE_MAX}}), "18446744073709551615 bytes at 64");
  ExpectParked(6, {{id + 100, kPage, 64}});
}

TEST_F(BorrowerTest, DescriptorsThatAreNoSegmentsAreRefused) {
  const auto segment = NewSegment(2 * kPage);
  ExpectWrong(borrower_.OnSegment({0, kPage}, FdOf(*segment)), "segment 0");
  ExpectWrong(borrower_.OnSegment({5, 0}, FdOf(*segment)), "of 0 bytes");
  ExpectWrong(borrower_.OnSegment({5, kPage}, FdOf(*segment)), "has 8192 bytes");
  ExpectWrong(borrower_.OnSegment({5, 4 * kPage}, FdOf(*segment)), "has 8192 bytes");
  ExpectWrong(borrower_.OnSegment({5, kPage}, UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC))),
              "no sealed memory");
  UniqueFd forged(memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(forged.get(), kPage), 0);
  ExpectWrong(borrower_.OnSegment({5, kPage}, forged), "has the seals 0");
  ASSERT_EQ(fcntl(forged.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | 0x10 | F_SEAL_SEAL), 0);
  ExpectWrong(borrower_.OnSegment({5, kPage}, forged), "only 0 are allocated");
  EXPECT_EQ(of_peer_->things(), 0u);
  EXPECT_EQ(of_carrier_->bytes(), 0u);
  ASSERT_TRUE(Pass(*segment).ok());
  ExpectWrong(Pass(*segment), "is passed twice");
}

TEST_F(BorrowerTest, ASegmentThatCannotBeMappedIsDeclined) {
  const auto lost = NewSegment(kPage);
  const auto large = NewSegment(11 * kPage);
  const auto third = NewSegment(kPage);
  ASSERT_TRUE(borrower_.OnSegment({lost->id(), kPage}, UniqueFd()).ok());
  ASSERT_TRUE(Pass(*large).ok());
  ASSERT_TRUE(Pass(*NewSegment(kPage)).ok());
  ASSERT_TRUE(Pass(*NewSegment(kPage)).ok());
  ASSERT_TRUE(Pass(*third).ok());
  for (const auto& segment : {lost, large, third}) {
    const auto outcome = Lend(3, {{segment->id(), 0, 64}});
    ASSERT_TRUE(outcome.ok() && outcome->declined.has_value());
    EXPECT_EQ(outcome->declined->lease, 3u);
    EXPECT_EQ(outcome->declined->segment, segment->id());
  }
  EXPECT_TRUE(notes_->empty()) << "a declined lease is not returned as well";
  ExpectWrong(Pass(*third), "is passed twice");
  // Unlike a message that waits for another segment, a message is declined at once.
  const auto outcome = Lend(4, {{999, 0, 64}, {lost->id(), 0, 64}});
  EXPECT_TRUE(outcome.ok() && outcome->declined.has_value());
}

TEST_F(BorrowerTest, TheMappingsOfAllLinksAreBounded) {
  const auto segment = NewSegment(5 * kPage);
  ASSERT_TRUE(of_carrier_->Take(5 * kPage));
  ASSERT_TRUE(Pass(*segment).ok());
  EXPECT_TRUE(Lend(1, {{segment->id(), 0, 64}})->declined.has_value());
  EXPECT_EQ(of_peer_->bytes(), 0u);
  of_carrier_->Give(5 * kPage);
}

TEST_F(BorrowerTest, ASegmentIsForgottenWhenItIsGone) {
  const auto segment = NewSegment(kPage);
  ASSERT_TRUE(Pass(*segment).ok());
  Message message = Get(1, {{segment->id(), 0, 64}});
  EXPECT_TRUE(*borrower_.OnGone(segment->id()));
  EXPECT_EQ(of_peer_->things(), 1u) << "a message lies in it";
  EXPECT_EQ(message.buffers[0].view(), std::string(64, '\0'));
  message = Message();
  EXPECT_EQ(of_peer_->things(), 0u);
  ExpectParked(2, {{segment->id(), 0, 64}});
}

TEST_F(BorrowerTest, ASegmentMayBeGoneBeforeItsDescriptorComes) {
  const auto segment = NewSegment(kPage);
  EXPECT_FALSE(*borrower_.OnGone(segment->id()));
  ExpectWrong(borrower_.OnGone(segment->id()), "is gone twice");
  ExpectParked(1, {{segment->id(), 0, 64}});
  EXPECT_TRUE(*Pass(*segment));
  EXPECT_EQ(of_peer_->things(), 0u);
}

TEST_F(BorrowerTest, MappingsAreRemovedByTheExecutorAndCountUntilThen) {
  unmapper_->Hold();
  const auto read = NewSegment(kPage);
  const auto unread = NewSegment(kPage);
  ASSERT_TRUE(Pass(*read).ok());
  ASSERT_TRUE(Pass(*unread).ok());
  Message message = Get(1, {{read->id(), 0, 64}});
  const void* const data = message.buffers[0].data();
  ASSERT_TRUE(*borrower_.OnGone(read->id()));
  message = Message();
  EXPECT_EQ(TakeReturned(), std::vector<uint64_t>{1}) << "the sender does not wait for that";
  borrower_.End();
  EXPECT_TRUE(IsMapped(data));
  EXPECT_EQ(of_peer_->things(), 2u);
  EXPECT_EQ(of_carrier_->bytes(), 2 * kPage);
  unmapper_->RunAll();
  EXPECT_FALSE(IsMapped(data));
  EXPECT_EQ(of_peer_->things(), 0u);
  EXPECT_EQ(of_carrier_->bytes(), 0u);
}

TEST_F(BorrowerTest, AMappingIsRemovedAtOnceIfTheExecutorHasEnded) {
  const auto segment = NewSegment(kPage);
  ASSERT_TRUE(Pass(*segment).ok());
  Message message = Get(1, {{segment->id(), 0, 64}});
  const void* const data = message.buffers[0].data();
  borrower_.End();
  unmapper_->Refuse();
  EXPECT_TRUE(IsMapped(data));
  message = Message();
  EXPECT_FALSE(IsMapped(data));
  EXPECT_EQ(of_peer_->things(), 0u);
}

TEST_F(BorrowerTest, LeasesAreBoundedUntilTheirReturnIsSent) {
  const auto segment = NewSegment(kPage);
  ASSERT_TRUE(Pass(*segment).ok());
  for (size_t i = 0; i < kMaxLeases; ++i) Get(i, {{segment->id(), 0, 64}});
  EXPECT_EQ(TakeReturned().size(), kMaxLeases);
  borrower_.CountReturned(kMaxLeases);
  for (size_t i = 0; i < kMaxLeases; ++i) ExpectParked(i, {{999, 0, 64}});
  ExpectWrong(Lend(1, {{segment->id(), 0, 64}}), "more than 4096 leases");
}

TEST_F(BorrowerTest, SegmentsAreBounded) {
  for (uint64_t id = 1; id <= kMaxSegments; ++id) {
    ASSERT_TRUE(borrower_.OnSegment({id, kPage}, UniqueFd()).ok());
  }
  ExpectWrong(borrower_.OnSegment({kMaxSegments + 1, kPage}, UniqueFd()), "segments");
  ExpectWrong(borrower_.OnGone(kMaxSegments + 1), "segments");
}

TEST_F(BorrowerTest, AMessageThatFindsNoRoomIsRefusedAndReturned) {
  const auto segment = NewSegment(kPage);
  ASSERT_TRUE(Pass(*segment).ok());
  const MemoryCharge all = *account_->Charge(1 << 20);
  const auto outcome = Lend(5, {{0, 0, 1000}, {segment->id(), 0, 64}});
  ASSERT_TRUE(outcome.ok() && outcome->refused.has_value());
  EXPECT_EQ(outcome->refused->header, "h");
  EXPECT_EQ(outcome->refused->why.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(TakeReturned(), std::vector<uint64_t>{5});
}

TEST_F(BorrowerTest, ALongTableOfBuffersIsChargedAsLongAsOneOfThemIsKept) {
  const auto segment = NewSegment(kPage);
  ASSERT_TRUE(Pass(*segment).ok());
  const size_t many = 2000;
  Message message = Get(1, std::vector<LentBuffer>(many, {segment->id(), 0, 64}));
  const size_t with_message = account_->used_bytes();
  Buffer one = message.buffers[7];
  message = Message();
  const size_t kept = account_->used_bytes();
  EXPECT_LT(kept, with_message) << "the message's own table is gone";
  EXPECT_GE(kept, BorrowingBytes(many));
  one = Buffer();
  EXPECT_EQ(account_->used_bytes(), 0u);
  ExpectParked(2, std::vector<LentBuffer>(many, {999, 0, 64}));
  EXPECT_EQ(account_->used_bytes(), with_message);
  borrower_.End();
  EXPECT_EQ(account_->used_bytes(), 0u);
  const MemoryCharge all = *account_->Charge((1 << 20) - BorrowingBytes(many) + 1);
  const auto outcome = Lend(3, std::vector<LentBuffer>(many, {segment->id(), 0, 64}));
  EXPECT_TRUE(outcome.ok() && outcome->refused.has_value());
}

TEST_F(BorrowerTest, AnEndLeavesMessagesReadable) {
  const auto segment = NewSegment(kPage);
  ASSERT_TRUE(Pass(*segment).ok());
  ASSERT_TRUE(Pass(*NewSegment(kPage)).ok());
  Message message = Get(1, {{segment->id(), 0, kPage}});
  ExpectParked(2, {{999, 0, 64}});
  borrower_.End();
  EXPECT_EQ(of_peer_->things(), 1u);
  EXPECT_EQ(message.buffers[0].view(), std::string(kPage, '\0'));
  message = Message();
  EXPECT_EQ(of_peer_->things(), 0u);
  EXPECT_FALSE(*Pass(*segment)) << "a packet that is read at the same time maps nothing";
  EXPECT_EQ(of_peer_->things(), 0u);
  EXPECT_TRUE(borrower_.LookForStall().ok()) << "nothing is parked";
}

}  // namespace
}  // namespace psd::carrier
