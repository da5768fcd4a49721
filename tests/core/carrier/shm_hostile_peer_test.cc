// Peers that lie, scribble, stop or die harm nobody but themselves.

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/carrier/shm/shm_factory.h"
#include "core/carrier/shm/unix_socket.h"
#include "tests/core/carrier/recorder.h"
#include "tests/core/carrier/shm_listening_test.h"
#include "tests/core/carrier/shm_raw_peer.h"

namespace psd::carrier {
namespace {

class ShmHostilePeerTest : public ShmListeningTest {
 protected:
  void ExpectDeclined(const std::string& hello, int fd, const std::string& why) {
    ShmRawPeer peer(address_);
    SendPacket(peer.fd(), PacketKind::kHello, hello, fd);
    const std::string told = peer.AwaitEnd();
    EXPECT_TRUE(absl::StrContains(told, why)) << told;
    EXPECT_EQ(accepted(), 0u);
  }
  // Opens a link, has `lie` do something wrong, and expects the link to end with `why`.
  void ExpectEnds(const std::function<void(ShmRawPeer&)>& lie, const std::string& why) {
    Listen();
    ShmRawPeer peer(address_);
    peer.Open();
    lie(peer);
    const auto recorder = Accepted(0);
    ASSERT_TRUE(recorder->WaitForClosed());
    const absl::Status reason = recorder->closed()[0];
    EXPECT_EQ(reason.code(), absl::StatusCode::kInvalidArgument) << reason;
    EXPECT_TRUE(absl::StrContains(reason.message(), why)) << reason;
    peer.AwaitEnd();
    ExpectServes();
  }
};

FrameEncoder Whole(const std::string& header) {
  FrameEncoder frames;
  Message message;
  message.header = header;
  frames.Whole(message);
  return frames;
}

TEST_F(ShmHostilePeerTest, AnIntroductionThatIsNonsenseIsDeclined) {
  Listen();
  ShmRawPeer honest(address_);
  const std::string hello = honest.Hello();
  ExpectDeclined("GET / HTTP/1.1", honest.own().fd(), "no psd worker");
  std::string later = hello;
  later[6] = 9;
  ExpectDeclined(later, honest.own().fd(), "speaks version 9");
  ExpectDeclined(hello.substr(0, 40), honest.own().fd(), "introduction of 40 bytes");
  std::string sizes = hello;
  sizes[8] = 1;
  ExpectDeclined(sizes, honest.own().fd(), "a ring of 262145 bytes");
  ExpectServes();
}

TEST_F(ShmHostilePeerTest, ADescriptorThatIsNoSegmentIsDeclined) {
  Listen();
  const std::string hello = ShmRawPeer(address_).Hello();
  ExpectDeclined(hello, -1, "no sealed memory");
  const UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  ExpectDeclined(hello, file.get(), "no sealed memory");
  const UniqueFd unsealed(memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), RingSizes().SegmentBytes()), 0);
  ExpectDeclined(hello, unsealed.get(), "has the seals 0");
  ASSERT_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | 0x10 | F_SEAL_SEAL),
            0);
  ExpectDeclined(hello, unsealed.get(), "only 0 are allocated");
  ShmRawPeer small(address_, RingSizes{4096, 4096, 1});
  ExpectDeclined(hello, small.own().fd(), "its rings take");
  ExpectServes();
}

TEST_F(ShmHostilePeerTest, PacketsOfNoKnownKindEndTheLink) {
  ExpectEnds([](ShmRawPeer& peer) { ASSERT_EQ(send(peer.fd(), "\x2a", 1, 0), 1); },
             "a packet of kind 42");
}

TEST_F(ShmHostilePeerTest, ASecondHelloEndsTheLink) {
  ExpectEnds([](ShmRawPeer& peer) { peer.Introduce(); }, "a second hello");
}

TEST_F(ShmHostilePeerTest, DescriptorsThatNobodyAskedForAreClosed) {
  ExpectEnds(
      [](ShmRawPeer& peer) { SendPacket(peer.fd(), PacketKind::kBell, "", peer.own().fd()); },
      "passes 1 descriptors, not 0");
}

TEST_F(ShmHostilePeerTest, ATailThatIsNonsenseEndsTheLink) {
  ExpectEnds(
      [](ShmRawPeer& peer) {
        peer.header().rings[0].out.tail.store(uint64_t{1} << 60);
        peer.Ring();
      },
      "nonsense in the peer's ring: its tail is at 1152921504606846976");
}

TEST_F(ShmHostilePeerTest, ARecordThatIsNonsenseEndsTheLink) {
  ExpectEnds(
      [](ShmRawPeer& peer) {
        std::memset(peer.own().ring(1), 0xff, 64);
        peer.header().rings[1].out.tail.store(64);
        peer.Ring();
      },
      "a record of kind 255");
}

TEST_F(ShmHostilePeerTest, AFrameThatIsNonsenseEndsTheLink) {
  ExpectEnds(
      [](ShmRawPeer& peer) {
        const uint64_t header = 24 | uint64_t{1} << 32;
        std::memcpy(peer.own().ring(0), &header, sizeof(header));
        peer.header().rings[0].out.tail.store(32);
        peer.Ring();
      },
      "no psd frame");
}

TEST_F(ShmHostilePeerTest, TwoFramesInOneRecordEndTheLink) {
  ExpectEnds(
      [](ShmRawPeer& peer) {
        FrameEncoder two = Whole("a");
        two.Room(1);
        peer.Write(0, two);
      },
      "bytes behind it in its record");
}

TEST_F(ShmHostilePeerTest, PiecesInTheRingForControlEndTheLink) {
  ExpectEnds(
      [](ShmRawPeer& peer) {
        FrameEncoder announce;
        announce.Announce({1, kMinPieceBytes, {10, {}}});
        peer.Write(0, announce);
      },
      "a piece in the ring for control");
}

TEST_F(ShmHostilePeerTest, ControlInARingForPiecesEndsTheLink) {
  ExpectEnds(
      [](ShmRawPeer& peer) {
        FrameEncoder message = Whole("a");
        peer.Write(1, message);
      },
      "control in a ring for pieces");
}

TEST_F(ShmHostilePeerTest, AnAckOfNothingEndsTheLink) {
  ExpectEnds(
      [](ShmRawPeer& peer) {
        FrameEncoder ack;
        ack.Ack(7);
        peer.Write(0, ack);
      },
      "an ack of transfer 7");
}

TEST_F(ShmHostilePeerTest, AHeadThatIsNonsenseEndsTheLinkOfWhoSends) {
  ExpectEnds(
      [this](ShmRawPeer& peer) {
        peer.header().rings[0].in.head.store(uint64_t{1} << 50);
        const std::shared_ptr<Link> link = Accepted(0)->WaitForLink();
        Message message;
        message.header = std::string(60'000, 'x');
        while (link->Send(message).ok()) {
        }
      },
      "says that it has read 1125899906842624 bytes");
}

TEST_F(ShmHostilePeerTest, NumbersThatChangeWhileTheyAreReadHarmNobody) {
  // A thread of the peer rewrites the sizes of a record and of its frame all the time, while the
  // carrier reads them.
  Listen();
  for (int round = 0; round < 100; ++round) {
    ShmRawPeer peer(address_);
    peer.Open();
    const auto recorder = Accepted(round);
    recorder->CountOnly();
    // A record with a whole message, written before the other thread begins.
    std::byte* const ring = peer.own().ring(0);
    FrameEncoder message = Whole(std::string(3000, 'x'));
    const uint64_t header = message.bytes() | uint64_t{1} << 32;
    std::memcpy(ring, &header, sizeof(header));
    const uint64_t tail = RecordBytes(message.bytes());
    size_t at = sizeof(header);
    for (const Buffer& part : message.Take()) {
      std::memcpy(ring + at, part.data(), part.size());
      at += part.size();
    }
    std::atomic<bool> stop{false};
    std::thread scribbler([&] {
      const uint32_t sizes[] = {3024, 100, 3'000'000, UINT32_MAX, 3024};
      for (size_t i = 0; !stop; ++i) {
        reinterpret_cast<std::atomic<uint32_t>*>(ring + 16)->store(sizes[i % 5]);  // the header's
        if (round % 2 == 0) {
          reinterpret_cast<std::atomic<uint32_t>*>(ring)->store(sizes[i % 5]);  // the record's
        }
        reinterpret_cast<std::atomic<uint32_t>*>(ring + 20)->store(i % 7);  // the buffers'
      }
    });
    peer.header().rings[0].out.tail.store(tail);
    peer.Ring();
    while (recorder->count() == 0 && recorder->closed().empty()) std::this_thread::yield();
    stop = true;
    scribbler.join();
  }
  ExpectServes();
}

// A block that counts where it is released, by the thread that made it or by another, and has the
// peer read all that was written then.
class CountedBlock : public Block {
 public:
  struct Releases {
    std::atomic<int> here{0};
    std::atomic<int> elsewhere{0};
    std::atomic<ShmRawPeer*> reader{nullptr};
  };
  CountedBlock(std::vector<std::byte>& bytes, std::shared_ptr<Releases> releases)
      : Block(bytes.data(), bytes.size()), releases_(std::move(releases)) {}
  ~CountedBlock() override {
    if (ShmRawPeer* const reader = releases_->reader; reader != nullptr) reader->ReadAll(0);
    ++(std::this_thread::get_id() == maker_ ? releases_->here : releases_->elsewhere);
  }

 private:
  const std::shared_ptr<Releases> releases_;  // shared with the test
  const std::thread::id maker_ = std::this_thread::get_id();
};

TEST_F(ShmHostilePeerTest, WhoSendsOneMessageDoesNotSendAllThatWaitForAFastReader) {
  constexpr int kMessages = 4000;
  constexpr size_t kBytes = 5000;
  // More than what is written at once, so that the ring is not full after it.
  options_.rings.control_bytes = size_t{1} << 20;
  Listen();
  ShmRawPeer peer(address_);
  peer.Open();
  const std::shared_ptr<Link> link = Accepted(0)->WaitForLink();
  const auto releases = std::make_shared<CountedBlock::Releases>();
  std::vector<std::byte> bytes(kBytes);  // of all messages
  const auto send = [&] {
    Message message;
    message.buffers.emplace_back(std::make_shared<CountedBlock>(bytes, releases), bytes.data(),
                                 kBytes);
    ASSERT_TRUE(link->Send(std::move(message)).ok());
  };
  // The peer reads nothing, and its ring is full, so that messages wait.
  for (int i = 1; i < kMessages; ++i) send();
  const int before = releases->here;
  // From now on the peer reads what is written at once, and rings no bell, so that the carrier's
  // thread sleeps.
  releases->reader = &peer;
  peer.ReadAll(0);
  send();
  EXPECT_LT((releases->here - before) * kBytes, size_t{1} << 20) << "it sent for others";
  // The carrier's thread sends the rest, and is woken by the peer only where it waits for that.
  while (releases->here + releases->elsewhere < kMessages) {
    if (peer.Starves(0)) peer.Ring();
    std::this_thread::yield();
  }
}

TEST_F(ShmHostilePeerTest, ConnectionsAndPacketsOfManyWakeUpsAreAllTaken) {
  Listen();
  ShmRawPeer peer(address_);
  peer.Open();
  std::atomic<bool> works{false};
  std::atomic<bool> piled_up{false};
  Accepted(0)->SetOnMessage([&](Link&, const Message&) {
    works = true;
    while (!piled_up) std::this_thread::yield();
  });
  FrameEncoder message = Whole("busy");
  peer.Write(0, message);
  // While the carrier's thread works, more comes than it takes at one wake-up.
  while (!works) std::this_thread::yield();
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 50; ++i) strangers.push_back(*ConnectUnix(address_));
  for (int i = 0; i < 100; ++i) peer.Ring();
  SendPacket(peer.fd(), PacketKind::kProbe);
  piled_up = true;
  while (true) {
    const auto packet = peer.AwaitPacket();
    ASSERT_TRUE(packet.ok()) << packet.status();
    if (packet->kind == PacketKind::kAlive) break;
  }
  ExpectServes();
}

TEST_F(ShmHostilePeerTest, APeerThatNeverIntroducesItselfIsClosed) {
  options_.handshake_timeout = absl::Milliseconds(20);
  Listen();
  ShmRawPeer peer(address_);
  peer.AwaitEnd();
  EXPECT_EQ(accepted(), 0u);
}

TEST_F(ShmHostilePeerTest, APeerThatShowsNoLifeIsGivenUp) {
  options_.keepalive_time = absl::Milliseconds(20);
  options_.keepalive_timeout = absl::Milliseconds(20);
  Listen();
  ShmRawPeer peer(address_);
  peer.Open();
  ASSERT_TRUE(Accepted(0)->WaitForClosed());
  const absl::Status reason = Accepted(0)->closed()[0];
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(reason.message(), "no sign of life")) << reason;
}

TEST_F(ShmHostilePeerTest, APeerThatAnswersProbesMayBeSilent) {
  options_.keepalive_time = absl::Milliseconds(10);
  options_.keepalive_timeout = absl::Seconds(10);
  Listen();
  ShmRawPeer peer(address_);
  peer.Open();
  for (int probes = 0; probes < 2;) {  // the second one shows that the answer counted
    auto packet = peer.AwaitPacket();
    ASSERT_TRUE(packet.ok()) << packet.status();
    if (packet->kind != PacketKind::kProbe) continue;
    ++probes;
    SendPacket(peer.fd(), PacketKind::kAlive);
  }
  EXPECT_TRUE(Accepted(0)->closed().empty());
}

TEST_F(ShmHostilePeerTest, APeerWhoseWordsWaitToBeReadIsNotGivenUp) {
  options_.keepalive_time = absl::Seconds(2);
  options_.keepalive_timeout = absl::Seconds(2);
  Listen();
  ShmRawPeer peer(address_);
  peer.Open();
  const auto recorder = Accepted(0);
  // The thread that would read the peer's answers is busy for longer than a silent peer is given.
  recorder->SetOnMessage([&peer](Link&, const Message& message) {
    if (message.header != "first") return;
    SendPacket(peer.fd(), PacketKind::kAlive);
    absl::SleepFor(absl::Seconds(7));
  });
  FrameEncoder first = Whole("first");
  peer.Write(0, first);
  ASSERT_TRUE(recorder->WaitForMessages(1));
  FrameEncoder second = Whole("second");
  peer.Write(0, second);
  EXPECT_TRUE(recorder->WaitForMessages(2));
}

TEST_F(ShmHostilePeerTest, APeerThatIsStoppedBeforeItRingsTheBellIsReadAndGivenUp) {
  options_.keepalive_time = absl::Milliseconds(20);
  options_.keepalive_timeout = absl::Milliseconds(20);
  Listen();
  ShmRawPeer peer(address_);
  peer.Open();
  ASSERT_TRUE(Accepted(0)->WaitForLink() != nullptr);
  FrameEncoder frames = Whole("last words");
  peer.WriteSilently(0, frames);
  ASSERT_TRUE(Accepted(0)->WaitForClosed());
  EXPECT_TRUE(absl::StrContains(Accepted(0)->closed()[0].message(), "no sign of life"));
}

TEST_F(ShmHostilePeerTest, APeerThatStopsInTheMiddleOfAMessageIsGivenUp) {
  options_.stall_timeout = absl::Milliseconds(20);
  Listen();
  ShmRawPeer peer(address_);
  peer.Open();
  FrameEncoder announce;
  announce.Announce({1, kMinPieceBytes, {1'000'000, {}}});
  peer.Write(1, announce);
  ASSERT_TRUE(Accepted(0)->WaitForClosed());
  EXPECT_EQ(Accepted(0)->closed()[0].code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ShmHostilePeerTest, APeerThatReadsNothingIsGivenUp) {
  options_.stall_timeout = absl::Milliseconds(20);
  Listen();
  ShmRawPeer peer(address_);
  peer.Open();
  const std::shared_ptr<Link> link = Accepted(0)->WaitForLink();
  Message message;
  message.header = std::string(60'000, 'x');
  for (int i = 0; i < 10; ++i) link->Send(message).IgnoreError();
  ASSERT_TRUE(Accepted(0)->WaitForClosed());
  const absl::Status reason = Accepted(0)->closed()[0];
  EXPECT_EQ(reason.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(absl::StrContains(reason.message(), "reads nothing")) << reason;
}

TEST_F(ShmHostilePeerTest, ThePacketsOfAPeerThatEndedAreReadAlthoughItHadNotReadAll) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd here(ends[0]);
  {
    const UniqueFd there(ends[1]);
    ASSERT_EQ(SendPacket(here.get(), PacketKind::kBell), 0);
    ASSERT_EQ(SendPacket(there.get(), PacketKind::kAlive), 0);
  }
  const auto packet = ReceivePacket(here.get());
  ASSERT_TRUE(packet.ok()) << packet.status();
  EXPECT_EQ((*packet)->kind, PacketKind::kAlive);
  EXPECT_EQ(ReceivePacket(here.get()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ShmHostilePeerTest, APeerThatIsKilledAtAnyPointIsNoticed) {
  // Each child opens a link and sends small and large messages until it is killed, after another
  // number of them each time.
  constexpr int kChildren = 6;
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < kChildren; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    char address[64] = {};
    if (read(pipes[0], address, sizeof(address)) <= 0) _exit(1);
    options_.limits.max_send_queue_bytes = 4'000'000;
    auto carrier = *NewShmCarrier(options_);
    auto recorder = std::make_shared<Recorder>();
    auto link = ConnectAndWait(*carrier, address, recorder);
    if (!link.ok()) _exit(2);
    for (char seed = 'a';; seed = static_cast<char>(seed < 'z' ? seed + 1 : 'a')) {
      Message message;
      message.header = std::string(1, seed);
      message.buffers.push_back(Buffer::FromString(std::string(seed % 3 * 100'000 + 1, seed)));
      absl::Status sent;
      while (absl::IsResourceExhausted(sent = (*link)->Send(message))) usleep(100);
      if (!sent.ok()) _exit(3);
    }
  }
  std::atomic<int> torn{0};
  Listen();
  for (int i = 0; i < kChildren; ++i) {
    char address[64] = {};
    std::strncpy(address, address_.c_str(), sizeof(address) - 1);
    ASSERT_EQ(write(pipes[1], address, sizeof(address)), static_cast<ssize_t>(sizeof(address)));
    const auto recorder = Accepted(i);
    recorder->SetOnMessage([&torn](Link&, const Message& message) {
      const absl::string_view bytes = message.buffers[0].view();
      torn += bytes != std::string(bytes.size(), message.header[0]);
    });
    recorder->CountOnly();
    EXPECT_TRUE(recorder->WaitForMessages(i * i)) << "child " << i << " sent " << recorder->count();
  }
  for (const pid_t child : children) ASSERT_EQ(kill(child, SIGKILL), 0);
  for (int i = 0; i < kChildren; ++i) {
    ASSERT_TRUE(Accepted(i)->WaitForClosed());
    EXPECT_EQ(Accepted(i)->closed()[0].code(), absl::StatusCode::kUnavailable)
        << Accepted(i)->closed()[0];
  }
  EXPECT_EQ(torn, 0) << "messages came in part";
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  close(pipes[0]);
  close(pipes[1]);
  ExpectServes();
}

// A TCP connection over which data waits that nobody reads, so that its close waits, too, for as
// long as the far end is there.
struct LingeringConnection {
  LingeringConnection() {
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener.get(), any, size), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), any, &size), 0);
    near = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(near.get(), any, size), 0);
    far = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string data(size_t{1} << 20, 'x');
    while (send(near.get(), data.data(), data.size(), MSG_DONTWAIT) > 0) {
    }
    const linger hours = {1, 7200};
    EXPECT_EQ(setsockopt(near.get(), SOL_SOCKET, SO_LINGER, &hours, sizeof(hours)), 0);
  }
  UniqueFd near, far;
};

// Passes the connections with one packet, and leaves them to the receiver.
void PassConnections(int socket, std::vector<LingeringConnection>& connections) {
  std::vector<int> passed;
  for (const LingeringConnection& connection : connections) passed.push_back(connection.near.get());
  std::vector<char> control(CMSG_SPACE(passed.size() * sizeof(int)));
  char kind = static_cast<char>(PacketKind::kBell);
  iovec part = {&kind, 1};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(passed.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), passed.data(), passed.size() * sizeof(int));
  EXPECT_EQ(sendmsg(socket, &message, 0), 1);
  for (LingeringConnection& connection : connections) connection.near = UniqueFd();
}

TEST_F(ShmHostilePeerTest, DescriptorsThatCloseSlowlyKeepNobodyWaiting) {
  Listen();
  ShmRawPeer honest(address_);
  honest.Open();
  const std::shared_ptr<Recorder> heard = Accepted(0);
  std::vector<LingeringConnection> read(3), unread(3);
  {
    ShmRawPeer peer(address_);
    peer.Open();
    // The carrier's thread works while two packets come, of which the first ends the link, so that
    // the second is never read.
    std::atomic<bool> works{false};
    std::atomic<bool> sent{false};
    heard->SetOnMessage([&](Link&, const Message&) {
      works = true;
      while (!sent) std::this_thread::yield();
    });
    FrameEncoder busy = Whole("busy");
    honest.Write(0, busy);
    while (!works) std::this_thread::yield();
    PassConnections(peer.fd(), read);
    PassConnections(peer.fd(), unread);
    heard->SetOnMessage(nullptr);
    sent = true;
    ASSERT_TRUE(Accepted(1)->WaitForClosed());
    Accepted(1)->SetLink(nullptr);
  }
  FrameEncoder message = Whole("goes on");
  honest.Write(0, message);
  EXPECT_TRUE(heard->WaitForMessages(2));
  ExpectServes();
  // Only a carrier that still waits needs this.
  for (auto* connections : {&read, &unread}) connections->clear();
}

TEST_F(ShmHostilePeerTest, AProcessOfAnotherUserCannotKeepTheCarrierFromItsLinks) {
  constexpr int kCannot = 77;
  LingeringConnection lingering;
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    lingering.far = UniqueFd();
    char address[64] = {};
    if (read(pipes[0], address, sizeof(address)) <= 0) _exit(1);
    if (setuid(65'534) != 0) _exit(kCannot);
    // The carrier may refuse the connection before anything is passed.
    UniqueFd socket = *ConnectUnix(address);
    while (SendPacket(socket.get(), PacketKind::kHello, "hello", lingering.near.get()) != 0) {
      socket = *ConnectUnix(address);
    }
    lingering.near = UniqueFd();
    pollfd readable = {socket.get(), POLLIN, 0};
    _exit(poll(&readable, 1, /*timeout=*/60'000) == 1 ? 0 : 2);
  }
  lingering.near = UniqueFd();
  Listen();
  ShmRawPeer peer(address_);
  peer.Open();
  char address[64] = {};
  std::strncpy(address, address_.c_str(), sizeof(address) - 1);
  ASSERT_EQ(write(pipes[1], address, sizeof(address)), static_cast<ssize_t>(sizeof(address)));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  close(pipes[0]);
  close(pipes[1]);
  FrameEncoder message = Whole("goes on");
  peer.Write(0, message);
  EXPECT_TRUE(Accepted(0)->WaitForMessages(1));
  lingering.far = UniqueFd();
  if (WEXITSTATUS(status) == kCannot) GTEST_SKIP() << "this process cannot become another user";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ExpectServes();
}

TEST_F(ShmHostilePeerTest, AProcessOfAnotherUserMayNotConnect) {
  constexpr int kCannot = 77;
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    char address[64] = {};
    if (read(pipes[0], address, sizeof(address)) <= 0) _exit(1);
    if (setuid(65'534) != 0) _exit(kCannot);
    ShmRawPeer peer(address);
    _exit(absl::StrContains(peer.AwaitEnd(), "user 65534 may not connect") ? 0 : 2);
  }
  Listen();
  char address[64] = {};
  std::strncpy(address, address_.c_str(), sizeof(address) - 1);
  ASSERT_EQ(write(pipes[1], address, sizeof(address)), static_cast<ssize_t>(sizeof(address)));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  close(pipes[0]);
  close(pipes[1]);
  if (WEXITSTATUS(status) == kCannot) GTEST_SKIP() << "this process cannot become another user";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace psd::carrier
