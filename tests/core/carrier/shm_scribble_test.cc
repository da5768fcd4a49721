// Peers that scribble on everything that they can write, thousands of times, while the carrier
// reads and writes. Each round is made from its number, so a round that fails can be repeated.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/carrier/frame.h"
#include "core/carrier/shm/introduction.h"
#include "core/carrier/shm/lending/limits.h"
#include "core/carrier/shm/ring_format.h"
#include "core/carrier/shm/unix_socket.h"
#include "tests/core/carrier/lending/segment_buffer.h"
#include "tests/core/carrier/process_resources.h"
#include "tests/core/carrier/recorder.h"
#include "tests/core/carrier/shm_listening_test.h"
#include "tests/core/carrier/shm_raw_peer.h"

namespace psd::carrier {
namespace {

constexpr RingSizes kRings{4096, 8192, 2};

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  // A number below `bound`.
  uint64_t Below(uint64_t bound) { return engine_() % bound; }
  bool OneIn(uint64_t chances) { return Below(chances) == 0; }
  // A number that is near `near`, or has few or many bits.
  uint64_t Number(uint64_t near) {
    switch (Below(5)) {
      case 0:
        return near + 8 * Below(2048);
      case 1:
        return near - 8 * Below(2048);
      case 2:
        return near + Below(64);
      case 3:
        return uint64_t{1} << Below(64);
      default:
        return engine_();
    }
  }
  std::string Bytes(size_t count) {
    std::string bytes(count, '\0');
    for (char& byte : bytes) byte = static_cast<char>(engine_());
    return bytes;
  }

 private:
  std::mt19937_64 engine_;
};

// Changes some bytes of a text, or its length.
std::string Garble(std::string text, Dice& dice) {
  for (uint64_t i = dice.Below(4); i > 0 && !text.empty(); --i) {
    text[dice.Below(text.size())] = static_cast<char>(dice.Number(0));
  }
  if (dice.OneIn(4)) text.resize(dice.Below(2 * kMaxPacketBody));
  return text;
}

// Says of some buffers of `message` that they lie in a segment.
std::vector<LentBuffer> RandomLoan(const Message& message, Dice& dice) {
  std::vector<LentBuffer> buffers;
  for (const Buffer& buffer : message.buffers) {
    LentBuffer& lent = buffers.emplace_back();
    lent.bytes = buffer.size();
    if (dice.OneIn(4)) continue;
    lent.segment = 1 + dice.Below(3);
    lent.offset = kBlockAlignment * dice.Below(70);
  }
  return buffers;
}

FrameEncoder RandomFrame(Dice& dice) {
  FrameEncoder frames;
  Message message;
  message.header = dice.Bytes(dice.Below(300));
  for (uint64_t i = dice.Below(4); i > 0; --i) {
    message.buffers.push_back(Buffer::FromString(dice.Bytes(dice.Below(300))));
  }
  PieceCursor cursor;
  switch (dice.Below(11)) {
    case 0:
      frames.Announce({1 + dice.Below(3), kMinPieceBytes, {dice.Below(200'000), {dice.Below(99)}}});
      break;
    case 1:
      frames.Piece(1 + dice.Below(3), message, message.TotalBytes(), &cursor);
      break;
    case 2:
      frames.Ack(dice.Below(4));
      break;
    case 3:
      frames.Room(dice.Below(4));
      break;
    case 4:
    case 5:
      frames.Lent(dice.Below(4), message, RandomLoan(message, dice));
      break;
    case 6:
      frames.Returned({dice.Below(4), dice.Below(4)});
      break;
    case 7:
      frames.Declined({dice.Below(4), dice.Below(4)});
      break;
    case 8:
      frames.Gone(dice.Below(4));
      break;
    case 9:
      frames.Forgotten(dice.Below(4));
      break;
    default:
      frames.Whole(message);
  }
  return frames;
}

// Writes a number of one of the lines that the carrier reads.
void ScribbleHeader(SegmentHeader& header, Dice& dice) {
  RingLines& lines = header.rings[dice.Below(kRings.rings())];
  switch (dice.Below(5)) {
    case 0:
      lines.out.tail.store(dice.Number(lines.out.tail.load()));
      break;
    case 1:
      lines.in.head.store(dice.Number(lines.in.head.load()));
      break;
    case 2:
      lines.out.starved.store(static_cast<uint32_t>(dice.Number(0)));
      break;
    case 3:
      header.door.asleep.store(static_cast<uint32_t>(dice.Below(3)));
      break;
    default:
      header.door.naps.store(static_cast<uint32_t>(dice.Number(header.door.naps.load())));
  }
}

// Writes a word somewhere in a ring: mostly near the start, where the records are.
void ScribbleRing(ShmRawPeer& peer, Dice& dice) {
  const size_t ring = dice.Below(kRings.rings());
  const size_t words = kRings.BytesOf(ring) / sizeof(uint32_t);
  const size_t word = dice.Below(dice.OneIn(4) ? words : 64);
  auto* const at = reinterpret_cast<std::atomic<uint32_t>*>(peer.own().ring(ring)) + word;
  at->store(static_cast<uint32_t>(dice.Number(at->load())));
}

void SendRandomPacket(int socket, Dice& dice) {
  const auto kind = static_cast<PacketKind>(dice.Below(9));
  SendPacket(socket, kind, dice.Bytes(dice.Below(40)), dice.OneIn(8) ? socket : -1);
}

class ShmScribbleTest : public ShmListeningTest {
 protected:
  ShmScribbleTest() {
    options_.rings = kRings;
    options_.memory = MemoryBudget::Create(0);
  }

  // Runs `attack(dice)` for each round, with dice of the round's number. Checks after every
  // `checked` rounds that the honest link goes on and that nothing is left of the peers. Shuts the
  // carrier down at the end.
  template <typename Attack>
  void RunRounds(uint64_t rounds, uint64_t checked, const Attack& attack) {
    Listen();
    OpenHonest();
    ExpectHonestGoesOn();
    const ProcessResources before = CountResources();
    for (uint64_t round = 0; round < rounds; ++round) {
      SCOPED_TRACE(round);
      attack(Dice(round));
      if ((round + 1) % checked != 0) continue;
      ExpectHonestGoesOn();
      ASSERT_EQ(AwaitOnlyHonest(before), before);
    }
    honest_->WaitForLink()->Close();
    ASSERT_TRUE(Accepted(0)->WaitForClosed());
    carrier_->Shutdown();
    honest_->SetLink(nullptr);
    Accepted(0)->SetLink(nullptr);
    EXPECT_EQ(options_.memory->transit()->used_bytes(), 0u);
  }

 private:
  // Opens a link beside the peers of the rounds, on which messages come through all the time.
  void OpenHonest() {
    auto link = ConnectAndWait(*carrier_, address_, honest_);
    ASSERT_TRUE(link.ok()) << link.status();
    Accepted(0)->CountOnly();
  }
  void ExpectHonestGoesOn() {
    Message message;
    message.header = "honest";
    message.buffers.push_back(Buffer::FromString(std::string(sent_ % 100 * 1000, 'h')));
    ASSERT_TRUE(honest_->WaitForLink()->Send(message).ok());
    ASSERT_TRUE(Accepted(0)->WaitForMessages(++sent_));
  }
  // Waits until all links but the honest one have ended, and returns what is in use then.
  ProcessResources AwaitOnlyHonest(const ProcessResources& before) {
    // A link may be accepted after its peer is gone: the peer's introduction is in the socket.
    return AwaitResources(before, [this] {
      for (const auto& recorder : TakeAccepted(/*first=*/1)) {
        EXPECT_TRUE(recorder->WaitForClosed());
        EXPECT_EQ(recorder->closed().size(), 1u);
        EXPECT_EQ(recorder->after_close(), 0u);
        recorder->SetLink(nullptr);
      }
    });
  }

  const std::shared_ptr<Recorder> honest_ = std::make_shared<Recorder>();
  size_t sent_ = 0;
};

TEST_F(ShmScribbleTest, LinksWhoseMemoryIsScribbledOnHarmNobodyElse) {
  RunRounds(/*rounds=*/1000, /*checked=*/50, [this](Dice dice) {
    ShmRawPeer peer(address_, kRings);
    const size_t index = accepted();
    peer.Open();
    // Segments for its lent messages, one of which comes late.
    const Buffer lent = SharedBuffer(4096, 'l');
    const auto pass = [&](uint64_t id) {
      SendPacket(peer.fd(), PacketKind::kSegment, EncodePassedSegment({id, 4096}),
                 lent.place().segment()->fd());
    };
    for (uint64_t id = 1; id < 3; ++id) pass(id);
    const auto recorder = Accepted(index);
    recorder->CountOnly();
    const std::shared_ptr<Link> link = recorder->WaitForLink();
    std::atomic<bool> stop{false};
    std::thread scribbler([&, dice = Dice(dice.Below(UINT64_MAX))]() mutable {
      const bool headers = dice.OneIn(3);
      for (int i = 0; i < 2000 && !stop; ++i) {
        if (i % 16 == 0) std::this_thread::yield();
        ScribbleRing(peer, dice);
        if (headers) ScribbleHeader(peer.header(), dice);
      }
    });
    for (uint64_t step = 5 + dice.Below(30); step > 0; --step) {
      switch (dice.Below(9)) {
        case 0: {
          Message message;
          message.header = dice.Bytes(dice.Below(3000));
          message.buffers.push_back(
              dice.OneIn(3) ? SharedBuffer(kLeastLentBytes, 'x')
                            : Buffer::FromString(std::string(dice.Below(100'000), 'x')));
          link->Send(std::move(message)).IgnoreError();  // the link may have ended
          break;
        }
        case 1:
          ScribbleHeader(peer.header(), dice);
          break;
        case 2:
          SendRandomPacket(peer.fd(), dice);
          break;
        case 3:
          peer.ReadAll(dice.Below(kRings.rings()));
          break;
        case 4:
          pass(2 + dice.Below(2));
          break;
        default: {
          FrameEncoder frames = RandomFrame(dice);
          peer.TryWrite(dice.Below(kRings.rings()), frames);
        }
      }
      peer.Ring();
    }
    stop = true;
    scribbler.join();
  });
}

// A descriptor to pass with an introduction: often not that of the segment.
UniqueFd RandomDescriptor(int socket, int segment, Dice& dice) {
  switch (dice.Below(6)) {
    case 0:
      return UniqueFd();
    case 1:
      return UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC));
    case 2:
      return UniqueFd(dup(socket));
    case 3: {
      UniqueFd memory(memfd_create("scribble", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      EXPECT_EQ(ftruncate(memory.get(), static_cast<off_t>(dice.Below(100'000))), 0);
      EXPECT_EQ(fcntl(memory.get(), F_ADD_SEALS, static_cast<int>(dice.Below(32))), 0);
      return memory;
    }
    default:
      return UniqueFd(dup(segment));
  }
}

// Introduces itself, more or less.
void SendRandomHello(int socket, const std::string& hello, int segment, Dice& dice) {
  const UniqueFd passed = RandomDescriptor(socket, segment, dice);
  if (dice.OneIn(3)) SendRandomPacket(socket, dice);
  SendPacket(socket, PacketKind::kHello, Garble(hello, dice), passed.get());
  if (dice.OneIn(3)) SendRandomPacket(socket, dice);
}

TEST_F(ShmScribbleTest, IntroductionsThatAreScribbledOnHarmNobodyElse) {
  RunRounds(/*rounds=*/3000, /*checked=*/100, [this](Dice dice) {
    ShmRawPeer peer(address_, kRings);
    SendRandomHello(peer.fd(), peer.Hello(), peer.own().fd(), dice);
    if (dice.OneIn(3)) ScribbleHeader(peer.header(), dice);
    // Some wait for the answer, and some end before it comes.
    if (dice.OneIn(2)) peer.AwaitPacket().status().IgnoreError();
  });
}

TEST_F(ShmScribbleTest, WhoDialsAScribblerIsToldOnce) {
  constexpr uint64_t kRounds = 1000;
  Listen();
  const ShmRawPeer model(address_, kRings);  // its segment is passed
  const UnixListener scribbler = *ListenUnix("unix:@");
  std::thread answers([&] {
    for (uint64_t round = 0; round < kRounds; ++round) {
      pollfd readable = {scribbler.fd.get(), POLLIN, 0};
      ASSERT_EQ(poll(&readable, 1, /*timeout=*/60'000), 1);
      const UniqueFd socket(accept4(scribbler.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
      Dice dice(round);
      // In both orders.
      if (round % 2 == 0) {
        pollfd hello = {socket.get(), POLLIN, 0};
        ASSERT_EQ(poll(&hello, 1, /*timeout=*/60'000), 1);
        ReceivePacket(socket.get()).status().IgnoreError();
      }
      SendRandomHello(socket.get(), model.Hello(), model.own().fd(), dice);
    }
  });
  int opened = 0;
  for (uint64_t round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    const auto recorder = std::make_shared<Recorder>();
    const auto link = ConnectAndWait(*carrier_, scribbler.address, recorder);
    if (!link.ok()) continue;
    ++opened;
    ASSERT_TRUE(recorder->WaitForClosed());
    EXPECT_EQ(recorder->closed().size(), 1u);
    recorder->SetLink(nullptr);
  }
  answers.join();
  EXPECT_GT(opened, 10);
  EXPECT_LT(opened, 900);
  ExpectServes();
}

}  // namespace
}  // namespace psd::carrier
