// Peers that lend, return and pass segments in wrong ways harm nobody but themselves.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "core/carrier/frame.h"
#include "core/carrier/shm/introduction.h"
#include "core/carrier/shm/lending/limits.h"
#include "core/carrier/shm/unix_socket.h"
#include "tests/core/carrier/lending/segment_buffer.h"
#include "tests/core/carrier/recorder.h"
#include "tests/core/carrier/shm_listening_test.h"
#include "tests/core/carrier/shm_raw_peer.h"

namespace psd::carrier {
namespace {

constexpr size_t kLent = kLeastLentBytes;
constexpr size_t kControl = 0;

void Pass(ShmRawPeer& peer, uint64_t id, uint64_t bytes, int fd) {
  SendPacket(peer.fd(), PacketKind::kSegment, EncodePassedSegment({id, bytes}), fd);
}
void Pass(ShmRawPeer& peer, const SharedSegment& segment) {
  Pass(peer, segment.id(), segment.bytes(), segment.fd());
}
// Writes a frame into the ring for control.
void Tell(ShmRawPeer& peer, const std::function<void(FrameEncoder&)>& append) {
  FrameEncoder frame;
  append(frame);
  peer.Write(kControl, frame);
}
// Lends one buffer.
void Lend(ShmRawPeer& peer, uint64_t lease, const LentBuffer& buffer) {
  Tell(peer, [&](FrameEncoder& frame) { frame.Lent(lease, Message(), {buffer}); });
}

class HostileLenderTest : public ShmListeningTest {
 protected:
  // Opens a link, has `lie` do something wrong, and expects the link to end with `why`.
  void ExpectEnds(const std::function<void(ShmRawPeer&)>& lie, const std::string& why,
                  absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    if (carrier_ == nullptr) Listen();
    const size_t index = accepted();
    ShmRawPeer peer(address_);
    peer.Open();
    const auto recorder = Accepted(index);
    lie(peer);
    ASSERT_TRUE(recorder->WaitForClosed());
    const absl::Status reason = recorder->closed()[0];
    EXPECT_EQ(reason.code(), code) << reason;
    EXPECT_TRUE(absl::StrContains(reason.message(), why)) << reason;
    peer.AwaitEnd();
    ExpectServes();
  }
  // Has the carrier lend a message to the peer that came last.
  void HaveItLend(const Buffer& buffer) {
    Message message;
    message.buffers = {buffer};
    const std::shared_ptr<Link> link = Accepted(accepted() - 1)->WaitForLink();
    ASSERT_TRUE(link->Send(std::move(message)).ok());
    ASSERT_EQ(link->shared_traffic().lent, buffer.size());
  }

  const std::shared_ptr<SharedSegment> segment_ = NewSegment(kLent);
};

TEST_F(HostileLenderTest, LeasesThatAreNotOutEndTheLink) {
  const auto returns = [](std::vector<uint64_t> leases) {
    return [leases](ShmRawPeer& peer) {
      Tell(peer, [&](FrameEncoder& frame) { frame.Returned(leases); });
    };
  };
  ExpectEnds(returns({7}), "lease 7, which is not out");
  const Buffer buffer = SliceOf(segment_, 0, kLent);
  const auto lends_first = [&](const std::function<void(ShmRawPeer&)>& then) {
    return [&, then](ShmRawPeer& peer) {
      HaveItLend(buffer);
      then(peer);
    };
  };
  ExpectEnds(lends_first(returns({1, 1})), "lease 1, which is not out");
  ExpectEnds(lends_first(returns({1, 2})), "lease 2, which is not out");
  ExpectEnds(lends_first([](ShmRawPeer& peer) {
               Tell(peer, [](FrameEncoder& frame) { frame.Declined({9, 9}); });
             }),
             "lease 9, which is not out");
  ExpectEnds(lends_first([](ShmRawPeer& peer) {
               Tell(peer, [](FrameEncoder& frame) { frame.Declined({1, 999'999}); });
             }),
             "declines segment 999999, which lease 1 does not name");
  ExpectEnds(lends_first([this](ShmRawPeer& peer) {
               Tell(peer, [this](FrameEncoder& frame) { frame.Forgotten(segment_->id()); });
             }),
             "which is not gone");
}

TEST_F(HostileLenderTest, BuffersOutsideTheirSegmentEndTheLink) {
  const auto lends = [this](const LentBuffer& buffer) {
    return [this, buffer](ShmRawPeer& peer) {
      Pass(peer, *segment_);
      Lend(peer, 1, buffer);
    };
  };
  const uint64_t id = segment_->id();
  ExpectEnds(lends({id, 64, kLent}), "262144 bytes at 64 of segment");
  ExpectEnds(lends({id, kLent + 64, 1}), "1 bytes at 262208");
  ExpectEnds(lends({id, UINT64_MAX - 63, 128}), "128 bytes at 18446744073709551552");
  ExpectEnds(lends({id, 8, 64}), "a lent buffer at 8, which is no multiple of 64");
  ExpectEnds(lends({id, 0, size_t{1} << 60}), "makes the message larger");
}

TEST_F(HostileLenderTest, FramesThatLendNothingOrInTheWrongPlaceEndTheLink) {
  ExpectEnds(
      [](ShmRawPeer& peer) {
        Tell(peer, [](FrameEncoder& frame) { frame.Lent(1, Message(), {}); });
      },
      "lends nothing");
  ExpectEnds(
      [this](ShmRawPeer& peer) {
        FrameEncoder frame;
        frame.Lent(1, Message(), {{segment_->id(), 0, 64}});
        peer.Write(1, frame);
      },
      "control in a ring for pieces");
}

TEST_F(HostileLenderTest, DescriptorsThatAreNoSegmentsEndTheLink) {
  const uint64_t id = segment_->id();
  const auto passes = [id](uint64_t bytes, int fd) {
    return [=](ShmRawPeer& peer) { Pass(peer, id, bytes, fd); };
  };
  ExpectEnds(passes(kLent, -1), "passes 0 descriptors, not 1");
  ExpectEnds(passes(2 * kLent, segment_->fd()), "has 262144 bytes; its blocks take 524288");
  ExpectEnds(passes(kLent / 2, segment_->fd()), "has 262144 bytes; its blocks take 131072");
  const UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  ExpectEnds(passes(kLent, file.get()), "no sealed memory");
  const UniqueFd unsealed(memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), kLent), 0);
  ExpectEnds(passes(kLent, unsealed.get()), "has the seals 0");
  ASSERT_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | 0x10 | F_SEAL_SEAL),
            0);
  ExpectEnds(passes(kLent, unsealed.get()), "only 0 are allocated");
}

TEST_F(HostileLenderTest, SegmentsThatArePassedInTheWrongWayEndTheLink) {
  ExpectEnds(
      [this](ShmRawPeer& peer) {
        Pass(peer, *segment_);
        Pass(peer, *segment_);
      },
      "is passed twice");
  ExpectEnds([this](ShmRawPeer& peer) { Pass(peer, 0, kLent, segment_->fd()); }, "segment 0");
  ExpectEnds(
      [this](ShmRawPeer& peer) {
        SendPacket(peer.fd(), PacketKind::kSegment, "abc", segment_->fd());
      },
      "passed with 3 bytes; it takes 16");
  ExpectEnds(
      [this](ShmRawPeer& peer) {
        for (int i = 0; i < 2; ++i) {
          Tell(peer, [this](FrameEncoder& frame) { frame.Gone(segment_->id()); });
        }
      },
      "is gone twice");
  ShmRawPeer early(address_);
  Pass(early, *segment_);
  EXPECT_TRUE(absl::StrContains(early.AwaitEnd(), "a segment before the hello"));
}

TEST_F(HostileLenderTest, AMessageWhoseDescriptorNeverComesEndsTheLinkInTheEnd) {
  options_.stall_timeout = absl::Milliseconds(20);
  ExpectEnds(
      [](ShmRawPeer& peer) {
        Lend(peer, 1, {77, 0, kLent});
      },
      "descriptor never came", absl::StatusCode::kDeadlineExceeded);
}

TEST_F(HostileLenderTest, TooManyLeasesEndTheLink) {
  ExpectEnds(
      [](ShmRawPeer& peer) {
        for (uint64_t lease = 1; lease <= kMaxLeases + 1; ++lease) {
          for (bool written = false; !written;) {
            FrameEncoder frame;
            frame.Lent(lease, Message(), {{77, 0, kLent}});
            written = peer.TryWrite(kControl, frame);
          }
        }
      },
      "more than 4096 leases");
}

TEST_F(HostileLenderTest, AMessageArrivesThatIsOvertakenByNothingButItsDescriptor) {
  Listen();
  ShmRawPeer peer(address_);
  peer.Open();
  const auto recorder = Accepted(0);
  Lend(peer, 5, {segment_->id(), 64, 100});
  Tell(peer, [](FrameEncoder& frame) {
    Message small;
    small.header = "small";
    frame.Whole(small);
  });
  ASSERT_TRUE(recorder->WaitForMessages(1));
  EXPECT_EQ(recorder->TakeMessages().at(0).header, "small");
  Pass(peer, *segment_);
  ASSERT_TRUE(recorder->WaitForMessages(2));
  EXPECT_EQ(recorder->TakeMessages().at(0).buffers.at(0).view(), std::string(100, '\0'));
}

TEST_F(HostileLenderTest, APeerThatEndsWithItsLastWordsOnTheWayIsHeard) {
  Listen();
  {
    ShmRawPeer peer(address_);
    peer.Open();
    Lend(peer, 5, {segment_->id(), 0, kLent});
    Pass(peer, *segment_);
  }
  const auto recorder = Accepted(0);
  ASSERT_TRUE(recorder->WaitForMessages(1));
  ASSERT_TRUE(recorder->WaitForClosed());
  EXPECT_EQ(recorder->closed()[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(recorder->TakeMessages().at(0).buffers.at(0).size(), kLent);
}

TEST_F(HostileLenderTest, BytesThatChangeWhileTheyAreReadHarmNobody) {
  // The carrier reads no payload, so only the handler sees the change.
  Listen();
  ShmRawPeer peer(address_);
  peer.Open();
  Pass(peer, *segment_);
  Lend(peer, 5, {segment_->id(), 0, kLent});
  const auto recorder = Accepted(0);
  ASSERT_TRUE(recorder->WaitForMessages(1));
  const Message message = recorder->TakeMessages().at(0);
  EXPECT_EQ(message.buffers[0].data()[0], std::byte{0});
  segment_->data()[0] = std::byte{1};
  EXPECT_EQ(message.buffers[0].data()[0], std::byte{1});
  ExpectServes();
}

}  // namespace
}  // namespace psd::carrier
