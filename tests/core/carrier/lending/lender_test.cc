#include "core/carrier/shm/lending/lender.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/shared_allocator.h"
#include "core/carrier/shm/lending/limits.h"
#include "core/carrier/shm/poller.h"
#include "tests/core/carrier/lending/segment_buffer.h"
#include "tests/core/carrier/lending/slow_executor.h"

namespace psd::carrier {
namespace {

constexpr size_t kLent = kLeastLentBytes;

class LenderTest : public testing::Test {
 protected:
  std::optional<Lender::Lent> Lend(Message& message) {
    return lender_.Lend(message, [this](const SharedSegment& segment) {
      passed_.push_back(segment.id());
      return may_pass_;
    });
  }
  // Lends a message that may be lent, and returns the lease.
  uint64_t MustLend(Message message) {
    const auto lent = Lend(message);
    EXPECT_TRUE(lent.has_value());
    return lent.has_value() ? lent->lease : 0;
  }
  static Message Of(std::vector<Buffer> buffers, const std::string& header = "h") {
    Message message;
    message.header = header;
    message.buffers = std::move(buffers);
    return message;
  }
  // Checks that a message is left as it is.
  void ExpectNotLent(Message message) {
    const size_t bytes = message.TotalBytes();
    const size_t buffers = message.buffers.size();
    EXPECT_FALSE(Lender::MayLend(message) && Lend(message).has_value());
    EXPECT_EQ(message.TotalBytes(), bytes);
    EXPECT_EQ(message.buffers.size(), buffers);
  }

  const std::unique_ptr<ShmPoller> poller_ = *ShmPoller::Create("a test");
  const std::shared_ptr<NoteBox> notes_ = std::make_shared<NoteBox>(poller_->bell());
  const std::shared_ptr<MemoryAccount> account_ =
      MemoryAccount::Create(1 << 20, NewHeapAllocator());
  const std::shared_ptr<SlowExecutor> unmapper_ = std::make_shared<SlowExecutor>();
  Lender lender_{notes_, account_, "a test", std::make_shared<Quota>(SIZE_MAX, 10 * kLent),
                 unmapper_};
  bool may_pass_ = true;
  std::vector<uint64_t> passed_;
};

TEST_F(LenderTest, ASegmentIsPassedOnceAndTheMessageIsKeptUntilItIsReturned) {
  const auto segment = NewSegment(4 * kLent);
  const Buffer buffer = SliceOf(segment, kLent, kLent);
  const std::weak_ptr<const void> kept = buffer.owner();
  const uint64_t first = MustLend(Of({buffer}));
  const uint64_t second = MustLend(Of({Buffer(SliceOf(segment, 0, kLent))}));
  EXPECT_EQ(passed_, std::vector<uint64_t>{segment->id()});
  EXPECT_EQ(lender_.lent_bytes(), 2 * kLent);
  EXPECT_EQ(lender_.bytes_now(), 2 * kLent);
  EXPECT_EQ(kept.use_count(), 2) << "here and in the loan";
  ASSERT_TRUE(lender_.OnReturned({first}).ok());
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_EQ(lender_.bytes_now(), kLent);
  EXPECT_EQ(lender_.OnReturned({first}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(lender_.OnReturned({second, second}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(account_->used_bytes(), 0u);
  EXPECT_FALSE(segment->retired());
}

TEST_F(LenderTest, BuffersOnTheHeapAreGatheredSoThatLargeOnesAreLent) {
  const auto memory = MemoryAccount::Create(0, NewSharedAllocator({}));
  Lender lender(notes_, memory, "a test", std::make_shared<Quota>(SIZE_MAX, 10 * kLent), unmapper_);
  const auto segment = NewSegment(4 * kLent);
  const std::string loose(100'001, 'l'), small = "small";
  const Buffer large = SliceOf(segment, 0, kLent);
  Message message = Of({Buffer::FromString(loose), large, Buffer::FromString(small),
                        SliceOf(segment, 8, 5000), Buffer::FromString(loose)});
  const auto lent = lender.Lend(message, [](const SharedSegment&) { return true; });
  ASSERT_TRUE(lent.has_value());
  EXPECT_EQ(lent->copied_bytes, 2 * loose.size() + small.size() + 5000);
  EXPECT_GE(memory->used_bytes(), kLent) << "what was copied is charged";
  const Message kept = *lender.OnDeclined({lent->lease, segment->id()});
  ASSERT_EQ(kept.buffers.size(), 5u);
  EXPECT_EQ(kept.buffers[0].view(), loose);
  EXPECT_EQ(kept.buffers[1].data(), large.data());
  EXPECT_EQ(kept.buffers[2].view(), small);
  EXPECT_EQ(kept.buffers[3].view(), SliceOf(segment, 8, 5000).view());
  EXPECT_EQ(kept.buffers[4].view(), loose);
}

TEST_F(LenderTest, MoreIsNotGatheredThanIsLent) {
  const auto memory = MemoryAccount::Create(0, NewSharedAllocator({}));
  Lender lender(notes_, memory, "a test", std::make_shared<Quota>(SIZE_MAX, 10 * kLent), unmapper_);
  const Buffer large = SharedBuffer(kLent, 'x');
  Message message = Of({large, Buffer::FromString(std::string(kLent + 1, 'l'))});
  const std::byte* const loose = message.buffers[1].data();
  EXPECT_FALSE(lender.Lend(message, [](const SharedSegment&) { return true; }).has_value());
  EXPECT_EQ(message.buffers[1].data(), loose);
}

TEST_F(LenderTest, MessagesThatDoNotSuitAreLeftAsTheyAre) {
  const auto segment = NewSegment(4 * kLent);
  const Buffer large = SliceOf(segment, 0, kLent);
  ExpectNotLent(Of({Buffer::FromString(std::string(kLent, 'x'))}));
  ExpectNotLent(Of({SliceOf(segment, 0, kLent - 1)}));
  ExpectNotLent(Of({SliceOf(segment, 8, kLent)}));
  ExpectNotLent(Of({large, SliceOf(segment, 8, kLent)}));
  ExpectNotLent(Of({large, Buffer::FromString(std::string(kMaxLentFrameBytes, 'x'))}));
  ExpectNotLent(Of({large}, std::string(kMaxLentFrameBytes, 'x')));
  ExpectNotLent(Of(std::vector<Buffer>(3000, large)));
  EXPECT_TRUE(passed_.empty());
  EXPECT_EQ(account_->used_bytes(), 0u);
}

TEST_F(LenderTest, SmallBuffersOfALentMessageTravelInItsFrame) {
  const auto segment = NewSegment(4 * kLent);
  Message message = Of({SliceOf(segment, 0, kLent), Buffer::FromString("abc"),
                        SliceOf(segment, kLent, 100), SliceOf(segment, kLent, 5000), Buffer()});
  const auto lent = Lend(message);
  ASSERT_TRUE(lent.has_value());
  EXPECT_EQ(lent->copied_bytes, 103u);
  EXPECT_EQ(lender_.bytes_now(), kLent + 5000);
}

TEST_F(LenderTest, NothingIsLentBeyondTheBoundUntilSomethingIsReturned) {
  const Buffer buffer = SharedBuffer(5 * kLent, 'x');
  const uint64_t lease = MustLend(Of({buffer}));
  MustLend(Of({buffer}));
  ExpectNotLent(Of({buffer}));
  ASSERT_TRUE(lender_.OnReturned({lease}).ok());
  MustLend(Of({buffer}));
  lender_.Cancel(lease + 1);
  MustLend(Of({buffer}));
}

TEST_F(LenderTest, ASegmentThatCannotBePassedNowIsTriedAgain) {
  const Buffer buffer = SharedBuffer(10 * kLent, 'x');
  may_pass_ = false;
  ExpectNotLent(Of({buffer}));
  EXPECT_EQ(lender_.bytes_now(), 0u);
  may_pass_ = true;
  MustLend(Of({buffer}));
  EXPECT_EQ(passed_.size(), 2u);
}

TEST_F(LenderTest, WhatWasNotLentIsNotCounted) {
  const uint64_t lease = MustLend(Of({SharedBuffer(kLent, 'x')}));
  Message message = Of({SharedBuffer(kLent, 'y')});
  EXPECT_FALSE(lender_
                   .Lend(message,
                         [&](const SharedSegment&) {
                           EXPECT_TRUE(lender_.OnReturned({lease}).ok());
                           return false;
                         })
                   .has_value());
  EXPECT_EQ(lender_.bytes_now(), 0u);
  EXPECT_FALSE(lender_
                   .Lend(message,
                         [&](const SharedSegment&) {
                           lender_.End();
                           EXPECT_EQ(lender_.bytes_now(), 0u) << "what the link counts at its end";
                           return true;
                         })
                   .has_value());
  EXPECT_EQ(lender_.bytes_now(), 0u);
}

TEST_F(LenderTest, ADeclinedMessageComesBackAndItsSegmentIsNotNamedAgain) {
  const Buffer bad = SharedBuffer(kLent, 'b');
  const Buffer good = SharedBuffer(kLent, 'g');
  const uint64_t bad_id = bad.place().segment()->id();
  const uint64_t lease = MustLend(Of({bad, good}, "both"));
  const uint64_t later = MustLend(Of({bad}, "later"));
  EXPECT_EQ(lender_.OnDeclined({lease, bad_id + 100}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto message = lender_.OnDeclined({lease, bad_id});
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->header, "both");
  EXPECT_EQ(message->buffers.size(), 2u);
  EXPECT_EQ(lender_.OnDeclined({lease, bad_id}).status().code(),
            absl::StatusCode::kInvalidArgument);
  ExpectNotLent(Of({bad}));
  MustLend(Of({good}));
  EXPECT_TRUE(lender_.OnDeclined({later, bad_id}).ok()) << "it was sent before";
}

TEST_F(LenderTest, TheOtherEndIsToldOfShownSegmentsThatAreGone) {
  Buffer buffer = SharedBuffer(kLent, 'x');
  const uint64_t id = buffer.place().segment()->id();
  SharedBuffer(kLent, 'y');  // nobody saw it
  const uint64_t lease = MustLend(Of({buffer}));
  buffer = Buffer();
  EXPECT_TRUE(notes_->empty()) << "the loan keeps it";
  ASSERT_TRUE(lender_.OnReturned({lease}).ok());
  const NoteBox::Notes notes = notes_->TakeAll();
  EXPECT_EQ(notes.gone, std::vector<uint64_t>{id});
  EXPECT_EQ(lender_.OnForgotten(id).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(lender_.OnGone({id + 100, id}), std::vector<uint64_t>{id});
  EXPECT_TRUE(lender_.OnForgotten(id).ok());
  EXPECT_EQ(lender_.OnForgotten(id).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LenderTest, AnEndRetiresWhatIsOutAndNothingElse) {
  const auto out = NewSegment(kLent);
  const auto back = NewSegment(kLent);
  const Buffer buffer = SliceOf(out, 0, kLent);
  const std::weak_ptr<const void> kept = buffer.owner();
  MustLend(Of({buffer}));
  ASSERT_TRUE(lender_.OnReturned({MustLend(Of({SliceOf(back, 0, kLent)}))}).ok());
  lender_.End();
  EXPECT_TRUE(out->retired());
  EXPECT_FALSE(back->retired());
  EXPECT_EQ(kept.use_count(), 1) << "the loan is dropped";
  EXPECT_EQ(lender_.bytes_now(), 0u);
  ExpectNotLent(Of({buffer}));
  EXPECT_TRUE(lender_.OnReturned({1}).ok()) << "the peer may not have heard yet";
}

TEST_F(LenderTest, TheExecutorDropsWhatIsOutAtTheEnd) {
  unmapper_->Hold();
  Buffer buffer = SharedBuffer(kLent, 'x');
  const std::weak_ptr<SharedSegment> segment = buffer.place().segment()->weak_from_this();
  MustLend(Of({std::exchange(buffer, Buffer())}));
  lender_.End();
  ASSERT_FALSE(segment.expired()) << "the thread of the link does not free it";
  EXPECT_TRUE(segment.lock()->retired());
  EXPECT_EQ(lender_.bytes_now(), 0u);
  unmapper_->RunAll();
  EXPECT_TRUE(segment.expired());
}

TEST_F(LenderTest, WhatIsOutAtTheEndIsDroppedAtOnceIfTheExecutorHasEnded) {
  const auto segment = NewSegment(kLent);
  const Buffer buffer = SliceOf(segment, 0, kLent);
  const std::weak_ptr<const void> kept = buffer.owner();
  MustLend(Of({buffer}));
  unmapper_->Refuse();
  lender_.End();
  EXPECT_TRUE(segment->retired());
  EXPECT_EQ(kept.use_count(), 1) << "the loan is dropped";
}

TEST_F(LenderTest, NothingIsLentWhileMoreThanHalfOfTheMemoryIsInUse) {
  const Buffer buffer = SharedBuffer(kLent, 'x');
  MemoryCharge half = *account_->Charge(1 << 19);
  MustLend(Of({buffer}));
  const MemoryCharge more = *account_->Charge(1);
  ExpectNotLent(Of({buffer}));
  half.reset();
  MustLend(Of({buffer}));
}

TEST_F(LenderTest, AMessageIsNotLentIfItsBookkeepingFindsNoRoom) {
  const Buffer buffer = SharedBuffer(kLent, 'x');
  const MemoryCharge all = *account_->Charge(1 << 20);
  ExpectNotLent(Of({buffer}, std::string(1000, 'h')));
}

}  // namespace
}  // namespace psd::carrier
