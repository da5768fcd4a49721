// Messages that are lent: they are read where their sender has them, and returned.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/base/shared_segment.h"
#include "core/carrier/shm/lending/limits.h"
#include "core/carrier/shm/shm_factory.h"
#include "core/carrier/shm/unix_socket.h"
#include "tests/core/carrier/lending/segment_buffer.h"
#include "tests/core/carrier/process_resources.h"
#include "tests/core/carrier/recorder.h"
#include "tests/core/carrier/shm_listening_test.h"
#include "tests/core/carrier/shm_raw_peer.h"

namespace psd::carrier {
namespace {

constexpr size_t kLent = kLeastLentBytes;

// A carrier that listens, another one that dials it, and a recorder at each end of their link.
class LendingTest : public ShmListeningTest {
 protected:
  void TearDown() override {
    if (dialler_ != nullptr) dialler_->Shutdown();
    if (near_ != nullptr) near_->SetLink(nullptr);
    ShmListeningTest::TearDown();
  }
  void Open() {
    Listen();
    dialler_ = *NewShmCarrier(options_);
    near_ = std::make_shared<Recorder>();
    auto link = ConnectAndWait(*dialler_, address_, near_);
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *link;
    far_ = Accepted(0);
  }
  // Sends a message and returns it as it arrives at the other end.
  Message Exchange(Message message) {
    const size_t before = far_->count();
    EXPECT_TRUE(link_->Send(std::move(message)).ok());
    EXPECT_TRUE(far_->WaitForMessages(before + 1));
    std::vector<Message> got = far_->TakeMessages();
    EXPECT_EQ(got.size(), 1u);
    return std::move(got.at(0));
  }
  static bool IsForeign(const Buffer& buffer) {
    return buffer.place().kind() == MemoryPlace::Kind::kForeign;
  }
  template <typename Condition>
  static void Await(const Condition& condition) {
    const absl::Time until = absl::Now() + kPatience;
    while (!condition() && absl::Now() < until) std::this_thread::yield();
    EXPECT_TRUE(condition());
  }

  std::shared_ptr<Carrier> dialler_;
  std::shared_ptr<Recorder> near_;
  std::shared_ptr<Recorder> far_;
  std::shared_ptr<Link> link_;
};

Message With(const std::string& header, std::vector<Buffer> buffers) {
  Message message;
  message.header = header;
  message.buffers = std::move(buffers);
  return message;
}

TEST_F(LendingTest, ALargeBufferInASegmentIsReadWhereItIs) {
  Open();
  auto segment = NewSegment(kLent);
  const std::weak_ptr<SharedSegment> kept = segment;
  std::memset(segment->data(), 'a', kLent);
  Message got = Exchange(With("pull", {SliceOf(segment, 0, kLent)}));
  EXPECT_EQ(got.header, "pull");
  ASSERT_EQ(got.buffers.size(), 1u);
  ASSERT_TRUE(IsForeign(got.buffers[0]));
  EXPECT_EQ(got.buffers[0].view(), std::string(kLent, 'a'));
  // It is the same memory.
  std::memset(segment->data(), 'b', kLent);
  EXPECT_EQ(got.buffers[0].view(), std::string(kLent, 'b'));
  // The sender keeps it until the receiver has released it, and the receiver unmaps it then.
  segment.reset();
  EXPECT_FALSE(kept.expired());
  got = Message();
  Await([&] { return kept.expired(); });
  Await([&] { return CountResources().lent == 0; });
}

TEST_F(LendingTest, SmallBuffersComeAlongInTheirOrder) {
  Open();
  const auto segment = NewSegment(4 * kLent);
  std::memset(segment->data(), 's', 4 * kLent);
  const Message message =
      With(std::string(1000, 'h'),
           {Buffer::FromString("first"), SliceOf(segment, 64, kLent), Buffer(),
            SliceOf(segment, 3 * kLent, 5000), Buffer::FromString(std::string(5000, 'm')),
            SharedBuffer(2 * kLent, 't'), Buffer::FromString("last")});
  const Message got = Exchange(message);
  EXPECT_EQ(got.header, message.header);
  ASSERT_EQ(got.buffers.size(), message.buffers.size());
  for (size_t i = 0; i < got.buffers.size(); ++i) {
    EXPECT_TRUE(got.buffers[i].view() == message.buffers[i].view()) << i;
    EXPECT_EQ(IsForeign(got.buffers[i]), i == 1 || i == 3 || i == 5) << i;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(got.buffers[i].data()) % kBlockAlignment, 0u);
  }
  const SharedTraffic sent = link_->shared_traffic();
  EXPECT_EQ(sent.lent, 3 * kLent + 5000);
  EXPECT_EQ(sent.lent_now, sent.lent);
  EXPECT_EQ(sent.copied_out, 5009u);
  const SharedTraffic received = far_->WaitForLink()->shared_traffic();
  EXPECT_EQ(received.borrowed, sent.lent);
  EXPECT_EQ(received.copied_in, sent.copied_out);
}

TEST_F(LendingTest, MessagesThatCannotBeLentAreCopied) {
  Open();
  const Buffer shared = SharedBuffer(kLent, 's');
  for (const Message& message :
       {With("heap", {Buffer::FromString(std::string(kLent, 'x'))}),
        With("small", {shared.Slice(0, kLent - 64)}), With("odd", {shared.Slice(8, kLent - 8)}),
        With("mixed", {shared, Buffer::FromString(std::string(100'000, 'x'))}),
        With(std::string(1 << 20, 'h'), {shared})}) {
    const Message got = Exchange(message);
    EXPECT_TRUE(got.header == message.header);
    ASSERT_EQ(got.buffers.size(), message.buffers.size());
    for (size_t i = 0; i < got.buffers.size(); ++i) {
      EXPECT_FALSE(IsForeign(got.buffers[i]));
      EXPECT_TRUE(got.buffers[i].view() == message.buffers[i].view());
    }
  }
  EXPECT_EQ(link_->shared_traffic().lent, 0u);
}

TEST_F(LendingTest, BothEndsLendAndASegmentIsMappedOnce) {
  on_message_ = [](Link& link, const Message& message) {
    Message answer;
    answer.header = message.header;
    answer.buffers = {SharedBuffer(2 * kLent, message.header[0])};
    EXPECT_TRUE(link.Send(answer).ok());
  };
  Open();
  const Buffer buffer = SharedBuffer(kLent, 'x');
  for (int i = 0; i < 200; ++i) {
    const char letter = static_cast<char>('a' + i % 26);
    ASSERT_TRUE(link_->Send(With(std::string(1, letter), {buffer})).ok());
    ASSERT_TRUE(near_->WaitForMessages(i + 1));
    const std::vector<Message> got = near_->TakeMessages();
    EXPECT_EQ(got.at(0).buffers.at(0).view(), std::string(2 * kLent, letter));
  }
  // Every answer came in a segment of its own, which is gone.
  Await([&] { return CountResources().lent == 1; });
  Await([&] { return link_->shared_traffic().lent_now == 0; });
  EXPECT_EQ(link_->shared_traffic().lent, 200 * kLent);
  EXPECT_EQ(dialler_->shared_traffic().borrowed, 400 * kLent);
}

TEST_F(LendingTest, ManyThreadsLendTheSameSegments) {
  Open();
  far_->CountOnly();
  std::vector<Buffer> buffers;
  for (char c : {'a', 'b', 'c'}) buffers.push_back(SharedBuffer(kLent, c));
  std::atomic<int> torn{0};
  far_->SetOnMessage([&](Link&, const Message& message) {
    const absl::string_view bytes = message.buffers[0].view();
    torn += bytes.front() != message.header[0] || bytes.back() != message.header[0];
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 250; ++i) {
        const Buffer& buffer = buffers[(t + i) % 3];
        EXPECT_TRUE(link_->Send(With(std::string(buffer.view().substr(0, 1)), {buffer})).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(far_->WaitForMessages(1000));
  EXPECT_EQ(torn, 0);
  Await([&] { return link_->shared_traffic().lent_now == 0; });
}

TEST_F(LendingTest, AReaderThatKeepsEverythingGetsCopiesInTheEnd) {
  options_.max_lent_bytes = 3 * kLent;
  Open();
  const Buffer buffer = SharedBuffer(kLent, 'x');
  std::vector<Message> kept;
  for (int i = 0; i < 10; ++i) {
    kept.push_back(Exchange(With("pull", {buffer})));
    EXPECT_EQ(IsForeign(kept.back().buffers[0]), i < 3) << i;
    EXPECT_TRUE(kept.back().buffers[0].view() == buffer.view());
  }
  EXPECT_EQ(link_->shared_traffic().lent_now, 3 * kLent);
  EXPECT_EQ(link_->shared_traffic().copied_out, 7 * kLent);
  kept.erase(kept.begin());
  Await([&] { return link_->shared_traffic().lent_now == 2 * kLent; });
  EXPECT_TRUE(IsForeign(Exchange(With("pull", {buffer})).buffers[0]));
}

TEST_F(LendingTest, AProcessDoesNotGetMoreOverMoreLinks) {
  options_.max_lent_bytes = 3 * kLent;
  Open();
  const Buffer buffer = SharedBuffer(kLent, 'x');
  const Message kept = Exchange(With("pull", {buffer}));
  const auto other = std::make_shared<Recorder>();
  const auto link = ConnectAndWait(*dialler_, address_, other);
  ASSERT_TRUE(link.ok()) << link.status();
  for (int i = 1; i <= 4; ++i) {
    ASSERT_TRUE((*link)->Send(With("pull", {buffer})).ok());
    ASSERT_TRUE(Accepted(1)->WaitForMessages(i));
  }
  EXPECT_EQ((*link)->shared_traffic().lent, 2 * kLent);
  EXPECT_EQ((*link)->shared_traffic().copied_out, 2 * kLent);
  other->SetLink(nullptr);
}

TEST_F(LendingTest, ABudgetBoundsWhatIsLent) {
  options_.memory = MemoryBudget::Create(100 * kLent);
  Open();
  const Buffer buffer = SharedBuffer(10 * kLent, 'x');
  std::vector<Message> kept;
  for (int i = 0; i < 3; ++i) {
    kept.push_back(Exchange(With("pull", {buffer})));
    EXPECT_EQ(IsForeign(kept.back().buffers[0]), i < 2) << "a quarter of the budget is lent";
  }
}

TEST_F(LendingTest, ASegmentThatTheReaderCannotMapIsCopied) {
  options_.max_mapped_bytes = 2 * kLent;
  Open();
  const Buffer large = SharedBuffer(3 * kLent, 'l');
  const Buffer fits = SharedBuffer(kLent, 'f');
  // Several messages are on their way when the first is declined.
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(link_->Send(With("large", {fits, large})).ok());
  ASSERT_TRUE(far_->WaitForMessages(5));
  for (const Message& message : far_->TakeMessages()) {
    EXPECT_FALSE(IsForeign(message.buffers.at(1)));
    EXPECT_TRUE(message.buffers.at(1).view() == large.view());
  }
  EXPECT_FALSE(IsForeign(Exchange(With("again", {large})).buffers[0]));
  EXPECT_TRUE(IsForeign(Exchange(With("fits", {fits})).buffers[0]));
  EXPECT_TRUE(near_->closed().empty() && far_->closed().empty());
}

TEST_F(LendingTest, WhatIsReadWhenTheLinkEndsStaysAsItIs) {
  Open();
  auto out = NewSegment(kLent);
  auto back = NewSegment(kLent);
  std::memset(out->data(), 'o', kLent);
  const Message got = Exchange(With("out", {SliceOf(out, 0, kLent)}));
  Exchange(With("back", {SliceOf(back, 0, kLent)}));
  Await([&] { return link_->shared_traffic().lent_now == kLent; });
  link_->Close();
  ASSERT_TRUE(near_->WaitForClosed());
  ASSERT_TRUE(far_->WaitForClosed());
  Await([&] { return out->retired(); });
  EXPECT_FALSE(back->retired());
  const std::weak_ptr<SharedSegment> gone = out;
  out.reset();
  Await([&] { return gone.expired(); });
  EXPECT_EQ(got.buffers[0].view(), std::string(kLent, 'o'));
  EXPECT_EQ(dialler_->shared_traffic().lent, 2 * kLent) << "ended links count";
}

TEST_F(LendingTest, AMessageIsReleasedAfterEverythingElseHasEnded) {
  Open();
  Message got = Exchange(With("out", {SharedBuffer(kLent, 'o')}));
  dialler_->Shutdown();
  carrier_->Shutdown();
  link_.reset();
  near_->SetLink(nullptr);
  far_->SetLink(nullptr);
  carrier_.reset();
  dialler_.reset();
  EXPECT_EQ(got.buffers[0].view(), std::string(kLent, 'o'));
  got = Message();
  EXPECT_EQ(CountResources().lent, 0u);
}

TEST_F(LendingTest, ALentMessageIsReleasedUnderAnyLock) {
  // The receiver releases messages under a lock that its handler takes, too.
  Mutex mutex;
  std::vector<Message> kept;
  Open();
  far_->CountOnly();
  far_->SetOnMessage([&](Link&, const Message& message) {
    MutexLock lock(mutex);
    kept.push_back(message);
  });
  const Buffer buffer = SharedBuffer(kLent, 'x');
  for (int i = 1; i <= 500; ++i) {
    ASSERT_TRUE(link_->Send(With("x", {buffer})).ok());
    MutexLock lock(mutex);
    kept.clear();
  }
  ASSERT_TRUE(far_->WaitForMessages(500));
  MutexLock lock(mutex);
  kept.clear();
  Await([&] { return link_->shared_traffic().lent_now == 0; });
}

TEST_F(LendingTest, ReturnsWakeTheirReaderAndNobodyElse) {
  // No probe wakes a thread by chance, and nothing else is sent.
  options_.keepalive_time = absl::Hours(1);
  Open();
  const Buffer buffer = SharedBuffer(kLent, 'x');
  for (int i = 0; i < 300; ++i) {
    Message got = Exchange(With("x", {buffer}));
    const absl::Time until = absl::Now() + absl::Microseconds(i * 37 % 150);
    while (absl::Now() < until) {
    }
    got = Message();
    Await([&] { return link_->shared_traffic().lent_now == 0; });
  }
}

TEST_F(LendingTest, TenThousandMessagesThatAreNeverReturned) {
  Listen();
  ShmRawPeer peer(address_);
  peer.Open();
  const std::shared_ptr<Link> link = Accepted(0)->WaitForLink();
  const Buffer buffer = SharedBuffer(kLent, 'x');
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(link->Send(With("x", {buffer})).ok());
    if (i % 100 == 0) peer.ReadAll(0);
  }
  EXPECT_EQ(link->shared_traffic().lent_now, kMaxLeases * kLent);
  EXPECT_EQ(link->shared_traffic().copied_out, (10'000 - kMaxLeases) * kLent);
  link->Close();
  ASSERT_TRUE(Accepted(0)->WaitForClosed());
  Await([&] { return buffer.place().segment()->retired(); });
  EXPECT_EQ(link->shared_traffic().lent_now, 0u);
}

TEST_F(LendingTest, APeerWithAFullSocketGetsCopies) {
  Listen();
  ShmRawPeer peer(address_);
  peer.Open();
  const std::shared_ptr<Link> link = Accepted(0)->WaitForLink();
  // The peer reads nothing from its socket, which fills up with answers to its probes.
  for (int i = 0; i < 2000 && link->shared_traffic().copied_out == 0; ++i) {
    for (int probe = 0; probe < 50; ++probe) SendPacket(peer.fd(), PacketKind::kProbe);
    peer.ReadAll(0);
    ASSERT_TRUE(link->Send(With("x", {SharedBuffer(kLent, 'x')})).ok());
  }
  EXPECT_GT(link->shared_traffic().lent, 0u);
  EXPECT_EQ(link->shared_traffic().copied_out, kLent);
}

}  // namespace
}  // namespace psd::carrier
