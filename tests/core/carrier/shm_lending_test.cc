// Messages that are lent: they are read where their sender has them, and returned.

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/shared_segment.h"
#include "core/carrier/shm/lending/limits.h"
#include "core/carrier/shm/shm_factory.h"
#include "tests/core/carrier/recorder.h"
#include "tests/core/carrier/segment_buffer.h"
#include "tests/core/carrier/shm_listening_test.h"

namespace psd::carrier {
namespace {

constexpr size_t kLent = kLeastLentBytes;

// A carrier that listens, another one that dials it, and a recorder at each end of their link.
class ShmLendingTest : public ShmListeningTest {
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
  // Waits until nobody keeps `segment` any more.
  static void AwaitGone(const std::weak_ptr<SharedSegment>& segment) {
    const absl::Time until = absl::Now() + kPatience;
    while (!segment.expired() && absl::Now() < until) std::this_thread::yield();
    EXPECT_TRUE(segment.expired());
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

TEST_F(ShmLendingTest, ALargeBufferInASegmentIsReadWhereItIs) {
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
  // The sender keeps it until the receiver has released it.
  segment.reset();
  EXPECT_FALSE(kept.expired());
  got = Message();
  AwaitGone(kept);
}

}  // namespace
}  // namespace psd::carrier
