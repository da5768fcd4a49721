// Tests that concern only the gRPC carrier: peers that speak gRPC but not the carrier's protocol,
// shared ports, threads and options.

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/carrier/frame.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/carrier/grpc/grpc_server_hook.h"
#include "tests/core/carrier/raw_peer.h"
#include "tests/core/carrier/recorder.h"

namespace psd::carrier {
namespace {

GrpcCarrierOptions PatientOptions() {
  GrpcCarrierOptions options;
  options.keepalive_time = absl::Seconds(20);
  options.keepalive_timeout = absl::Seconds(20);
  options.handshake_timeout = absl::Seconds(60);
  return options;
}

std::string Wire(const std::function<void(FrameEncoder&)>& append) {
  FrameEncoder encoder;
  append(encoder);
  std::string wire;
  for (const Buffer& part : encoder.Take()) wire.append(part.view().data(), part.size());
  return wire;
}

HelloFrame HelloWith(uint8_t token, StreamRole role) {
  HelloFrame hello;
  hello.token.fill(token);
  hello.role = role;
  return hello;
}

class HostilePeerTest : public testing::Test {
 protected:
  HostilePeerTest() : server_(*NewGrpcCarrier(PatientOptions())) {
    auto address = server_->Listen("127.0.0.1:0", [this](std::shared_ptr<Link> link) {
      auto recorder = std::make_shared<Recorder>();
      recorder->SetLink(std::move(link));
      MutexLock lock(mutex_);
      accepted_.push_back(recorder);
      return recorder;
    });
    address_ = *address;
    // A link of a correct client, which must outlive all attacks.
    auto link = ConnectAndWait(*client_, address_, honest_);
    EXPECT_TRUE(link.ok()) << link.status();
  }
  ~HostilePeerTest() override {
    EXPECT_TRUE(honest_->closed().empty());
    EXPECT_TRUE(honest_->WaitForLink()->Send(Message()).ok());
    EXPECT_TRUE(Accepted(0)->WaitForMessages(1));
    client_->Shutdown();
    server_->Shutdown();
    honest_->SetLink(nullptr);
    for (const auto& recorder : accepted_) recorder->SetLink(nullptr);
  }

  std::shared_ptr<Recorder> Accepted(size_t index) {
    MutexLock lock(mutex_);
    return accepted_.at(index);
  }

  // Sends `wire` from a raw peer with an open link. The link must end with an error that blames the
  // peer.
  void ExpectEndsLink(const std::string& wire) {
    uint8_t token = ++tokens_;  // the server may still know the token of the last link
    RawPeer peer(address_, "/psd.v1.Worker/Exchange");
    peer.Send(Wire([token](FrameEncoder& e) { e.Hello(HelloWith(token, StreamRole::kControl)); }));
    ASSERT_TRUE(peer.Receive()) << "the answer";
    size_t index = 0;
    {
      MutexLock lock(mutex_);
      index = accepted_.size() - 1;
    }
    peer.Send(wire);
    while (peer.Receive()) {
    }
    ASSERT_TRUE(Accepted(index)->WaitForClosed());
    EXPECT_EQ(Accepted(index)->closed()[0].code(), absl::StatusCode::kInvalidArgument)
        << Accepted(index)->closed()[0];
  }

  uint8_t tokens_ = 100;
  Mutex mutex_;
  std::vector<std::shared_ptr<Recorder>> accepted_;
  std::string address_;
  std::shared_ptr<Recorder> honest_ = std::make_shared<Recorder>();
  std::shared_ptr<Carrier> server_;
  std::shared_ptr<Carrier> client_ = *NewGrpcCarrier(PatientOptions());
};

TEST_F(HostilePeerTest, BadFramesEndTheirLinkOnly) {
  ExpectEndsLink("garbage that is longer than a preamble of twenty-four bytes");
  ExpectEndsLink("psd");
  ExpectEndsLink(Wire([](FrameEncoder& e) { e.Ack(99); }));
  ExpectEndsLink(Wire([](FrameEncoder& e) { e.OpenBulk(); }));
  ExpectEndsLink(Wire([](FrameEncoder& e) { e.Hello(HelloWith(7, StreamRole::kControl)); }));
  ExpectEndsLink(Wire([](FrameEncoder& e) { e.Announce({1, 65536, {0, {size_t{1} << 50}}}); }));
  Message message;
  message.header = "piece of nothing";
  PieceCursor cursor;
  ExpectEndsLink(Wire([&](FrameEncoder& e) { e.Piece(1, message, 5, &cursor); }));
}

TEST_F(HostilePeerTest, FramesThatBelongIntoSharedMemoryEndTheirLink) {
  ExpectEndsLink(Wire([](FrameEncoder& e) { e.Lent(1, Message(), {{5, 0, 100}}); }));
  ExpectEndsLink(Wire([](FrameEncoder& e) { e.Returned({1}); }));
  ExpectEndsLink(Wire([](FrameEncoder& e) { e.Declined({1, 5}); }));
  ExpectEndsLink(Wire([](FrameEncoder& e) { e.Gone(5); }));
  ExpectEndsLink(Wire([](FrameEncoder& e) { e.Forgotten(5); }));
}

TEST_F(HostilePeerTest, AStreamWithoutAHelloIsDeclined) {
  RawPeer peer(address_, "/psd.v1.Worker/Exchange");
  peer.Send("nonsense");
  EXPECT_FALSE(peer.Receive());
  EXPECT_EQ(peer.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(HostilePeerTest, AStreamBesideControlNeedsAKnownLink) {
  for (const StreamRole role : {StreamRole::kBulk, StreamRole::kWhole}) {
    RawPeer peer(address_, "/psd.v1.Worker/Exchange");
    peer.Send(Wire([role](FrameEncoder& e) { e.Hello(HelloWith(9, role)); }));
    EXPECT_FALSE(peer.Receive());
    EXPECT_EQ(peer.Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  }
}

TEST_F(HostilePeerTest, ALinkHasOneStreamOfEachKind) {
  RawPeer control(address_, "/psd.v1.Worker/Exchange");
  control.Send(Wire([](FrameEncoder& e) { e.Hello(HelloWith(8, StreamRole::kControl)); }));
  ASSERT_TRUE(control.Receive());
  RawPeer whole(address_, "/psd.v1.Worker/Exchange");
  whole.Send(Wire([](FrameEncoder& e) {
    e.Hello(HelloWith(8, StreamRole::kWhole));
    Message message;
    message.header = "by the second stream";
    e.Whole(message);
  }));
  ASSERT_TRUE(Accepted(1)->WaitForMessages(1));
  for (const StreamRole role : {StreamRole::kWhole, StreamRole::kBulk}) {
    HelloFrame hello = HelloWith(8, role);
    hello.stream_index = role == StreamRole::kBulk ? 16 : 0;  // 16 is beyond the last stream
    RawPeer second(address_, "/psd.v1.Worker/Exchange");
    second.Send(Wire([&hello](FrameEncoder& e) { e.Hello(hello); }));
    EXPECT_FALSE(second.Receive());
    EXPECT_EQ(second.Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  }
}

TEST_F(HostilePeerTest, OneConnectionBringsFewLinks) {
  std::vector<std::unique_ptr<RawPeer>> links;  // all of one process, over one connection
  const auto open = [&] {
    links.push_back(std::make_unique<RawPeer>(address_, "/psd.v1.Worker/Exchange"));
    links.back()->Send(Wire(
        [token = ++tokens_](FrameEncoder& e) { e.Hello(HelloWith(token, StreamRole::kControl)); }));
    return links.back()->Receive();
  };
  while (links.size() < 100 && open()) {
  }
  EXPECT_EQ(links.size(), 17u);
  const std::string declined = links.back()->Finish().error_message();
  EXPECT_NE(declined.find("has brought 16 links already"), std::string::npos) << declined;
}

TEST_F(HostilePeerTest, OneConnectionHasFewStreamsWithoutAHello) {
  constexpr int kStreams = 40, kMost = 16;
  std::vector<std::unique_ptr<RawPeer>> peers;  // all over one connection
  for (int i = 0; i < kStreams; ++i) {
    peers.push_back(std::make_unique<RawPeer>(address_, "/psd.v1.Worker/Exchange"));
  }
  CondVar changed;
  int refused = 0, ended = 0;
  std::vector<std::thread> threads;
  for (const auto& peer : peers) {
    threads.emplace_back([&, raw = peer.get()] {
      EXPECT_FALSE(raw->Receive());
      const std::string why = raw->Finish().error_message();
      MutexLock lock(mutex_);
      ++ended;
      refused += absl::StrContains(why, "has 16 streams without a hello already");
      changed.NotifyAll();
    });
  }
  {
    MutexLock lock(mutex_);
    while (refused < kStreams - kMost && ended < kStreams) changed.Wait(mutex_);
  }
  for (const auto& peer : peers) peer->Cancel();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, kStreams - kMost);
  // The places are free again once the server has noticed.
  for (bool taken = false; !taken;) {
    RawPeer late(address_, "/psd.v1.Worker/Exchange");
    late.Send(Wire([](FrameEncoder& e) { e.Hello(HelloWith(8, StreamRole::kControl)); }));
    taken = late.Receive();
  }
}

TEST_F(HostilePeerTest, OtherMethodsAreUnimplemented) {
  RawPeer peer(address_, "/psd.v1.Worker/Other");
  EXPECT_FALSE(peer.Receive());
  EXPECT_EQ(peer.Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(HostilePeerTest, APeerThatVanishesWithItsConnectionEndsTheLink) {
  {
    RawPeer peer(address_, "/psd.v1.Worker/Exchange");
    peer.Send(Wire([](FrameEncoder& e) { e.Hello(HelloWith(7, StreamRole::kControl)); }));
    ASSERT_TRUE(peer.Receive());
  }
  ASSERT_TRUE(Accepted(1)->WaitForClosed());
  EXPECT_EQ(Accepted(1)->closed()[0].code(), absl::StatusCode::kUnavailable);
}

class CountingHook : public GrpcServerHook {
 public:
  void Configure(grpc::ServerBuilder&) override { configured = true; }
  void Started(ServiceHost& host) override {
    has_queue = host.queue() != nullptr;
    gone = host.CountCall();
  }
  bool configured = false;
  bool has_queue = false;
  std::function<void()> gone;  // ends one counted call
};

TEST(GrpcCarrier, TheServerHookSharesPortAndThreadsAndIsWaitedFor) {
  auto hook = std::make_shared<CountingHook>();
  GrpcCarrierOptions options = PatientOptions();
  options.server_hook = hook;
  auto carrier = NewGrpcCarrier(options);
  ASSERT_TRUE(carrier.ok());
  ASSERT_TRUE(
      (*carrier)->Listen("127.0.0.1:0", [](std::shared_ptr<Link>) { return nullptr; }).ok());
  EXPECT_TRUE(hook->configured);
  EXPECT_TRUE(hook->has_queue);
  ASSERT_NE(hook->gone, nullptr);
  std::atomic<bool> is_gone = false;
  std::thread last_call([&] {
    is_gone = true;
    const std::function<void()> gone = std::move(hook->gone);  // keeps parts of the carrier alive
    gone();
  });
  (*carrier)->Shutdown();
  EXPECT_TRUE(is_gone);
  last_call.join();
}

// Two carriers with several threads each, and a link between them.
class ThreadsTest : public testing::Test {
 protected:
  void Connect(GrpcCarrierOptions options) {
    options.poll_threads = 4;
    server_ = *NewGrpcCarrier(options);
    client_ = *NewGrpcCarrier(options);
    auto address = server_->Listen("127.0.0.1:0", [this](std::shared_ptr<Link> link) {
      far_->SetLink(std::move(link));
      return far_;
    });
    address_ = *address;
    ASSERT_TRUE(ConnectAndWait(*client_, address_, near_).ok());
  }
  ~ThreadsTest() override {
    client_->Shutdown();
    server_->Shutdown();
    far_->SetLink(nullptr);
    near_->SetLink(nullptr);
  }

  std::shared_ptr<Recorder> near_ = std::make_shared<Recorder>();
  std::shared_ptr<Recorder> far_ = std::make_shared<Recorder>();
  std::shared_ptr<Carrier> server_, client_;
  std::string address_;
};

TEST_F(ThreadsTest, SmallMessagesKeepTheirOrder) {
  constexpr size_t kMessages = 5'000;
  Connect(PatientOptions());
  for (size_t i = 0; i < kMessages; ++i) {
    Message message;
    message.header = std::to_string(i);
    ASSERT_TRUE(near_->WaitForLink()->Send(std::move(message)).ok());
  }
  ASSERT_TRUE(far_->WaitForMessages(kMessages));
  const std::vector<Message> messages = far_->TakeMessages();
  for (size_t i = 0; i < kMessages; ++i) ASSERT_EQ(messages[i].header, std::to_string(i));
}

// The second message may be sent only when the first one is acknowledged. The acknowledgement comes
// on the stream whose handler waits for both messages.
TEST_F(ThreadsTest, AcknowledgementsAreHeardWhileTheHandlerWorks) {
  GrpcCarrierOptions options = PatientOptions();
  options.limits.max_assembly_bytes = size_t{8} << 20;
  Connect(options);
  std::atomic<bool> arrived{false};
  near_->SetOnMessage([&](Link& link, const Message&) {
    for (int i = 0; i < 2; ++i) {
      Message large;
      large.buffers.push_back(Buffer::FromString(std::string(size_t{6} << 20, 'x')));
      EXPECT_TRUE(link.Send(std::move(large)).ok());
    }
    arrived = far_->WaitForMessages(2);
  });
  ASSERT_TRUE(far_->WaitForLink()->Send(Message()).ok());
  ASSERT_TRUE(near_->WaitForMessages(1));
  EXPECT_TRUE(arrived);
}

// With a small budget, the receiver says after each piece how much it has read. Its threads do so
// at the same time.
TEST_F(ThreadsTest, PiecesThatSeveralThreadsReadAllArrive) {
  constexpr size_t kMessages = 20;
  GrpcCarrierOptions options = PatientOptions();
  options.memory = MemoryBudget::Create(size_t{64} << 20);
  options.room_patience = absl::Hours(1);
  Connect(options);
  far_->CountOnly();
  for (size_t i = 0; i < kMessages; ++i) {
    Message large;
    large.buffers.push_back(Buffer::FromString(std::string(size_t{12} << 20, 'x')));
    ASSERT_TRUE(near_->WaitForLink()->Send(std::move(large)).ok());
  }
  EXPECT_TRUE(far_->WaitForMessages(kMessages));
  EXPECT_TRUE(near_->closed().empty() && far_->closed().empty());
}

// Opens a connection and sends nothing by itself.
class SilentPeer {
 public:
  explicit SilentPeer(const std::string& address) {
    sockaddr_in target = {};
    target.sin_family = AF_INET;
    target.sin_port =
        htons(static_cast<uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
    target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&target), sizeof(target)), 0);
  }
  ~SilentPeer() { close(fd_); }
  // Sends the client's part of the HTTP/2 handshake: preface, settings and the acknowledgement of
  // settings.
  void ShakeHands() {
    const std::string empty_settings("\0\0\0\4\0\0\0\0\0", 9);
    const std::string acknowledged("\0\0\0\4\1\0\0\0\0", 9);
    const std::string all = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + empty_settings + acknowledged;
    EXPECT_EQ(write(fd_, all.data(), all.size()), static_cast<ssize_t>(all.size()));
  }
  void WaitForEnd() {
    char bytes[64];  // the settings of the server arrive before the end
    while (recv(fd_, bytes, sizeof(bytes), 0) > 0) {
    }
  }

 private:
  const int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
};

TEST_F(ThreadsTest, AConnectionThatSaysNothingEndsAndALinkStays) {
  GrpcCarrierOptions options = PatientOptions();
  options.handshake_timeout = absl::Seconds(5);
  Connect(options);
  SilentPeer silent(address_);
  silent.WaitForEnd();
  ASSERT_TRUE(near_->WaitForLink()->Send(Message()).ok());
  EXPECT_TRUE(far_->WaitForMessages(1));
}

// A server whose only timeout is the one for the first call of a connection.
class SilentPeersTest : public testing::Test {
 protected:
  SilentPeersTest() {
    GrpcCarrierOptions options;
    options.keepalive_time = absl::Hours(1);
    options.handshake_timeout = absl::Seconds(5);
    server_ = *NewGrpcCarrier(options);
    address_ = *server_->Listen("127.0.0.1:0", [](std::shared_ptr<Link>) { return nullptr; });
  }

  std::shared_ptr<Carrier> server_;
  std::string address_;
};

TEST_F(SilentPeersTest, EndAlsoWithTheirHandshakeDone) {
  std::vector<std::unique_ptr<SilentPeer>> peers;
  for (int i = 0; i < 20; ++i) {
    peers.push_back(std::make_unique<SilentPeer>(address_));
    peers.back()->ShakeHands();
  }
  for (const auto& peer : peers) peer->WaitForEnd();
}

TEST_F(SilentPeersTest, EndAlsoWithAStreamOnWhichNothingComes) {
  RawPeer peer(address_, "/psd.v1.Worker/Exchange");
  EXPECT_FALSE(peer.Receive());
  EXPECT_EQ(peer.Finish().error_code(), grpc::StatusCode::UNAVAILABLE) << "with its connection";
}

TEST_F(SilentPeersTest, AStreamOnWhichNothingComesEndsAloneOnAConnectionThatWasHeard) {
  const auto greet = [this] {
    auto peer = std::make_unique<RawPeer>(address_, "/psd.v1.Worker/Exchange");
    peer->Send(Wire([](FrameEncoder& e) { e.Hello(HelloWith(1, StreamRole::kControl)); }));
    EXPECT_FALSE(peer->Receive());
    EXPECT_EQ(peer->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
    return peer;
  };
  const auto heard = greet();
  RawPeer silent(address_, "/psd.v1.Worker/Exchange");
  EXPECT_FALSE(silent.Receive());
  EXPECT_EQ(silent.Finish().error_code(), grpc::StatusCode::CANCELLED)
      << "not with its connection, which would be UNAVAILABLE";
  greet();
}

TEST(GrpcCarrier, OptionsOutOfRangeAreRefused) {
  GrpcCarrierOptions options;
  options.poll_threads = 0;
  EXPECT_FALSE(NewGrpcCarrier(options).ok());
  options = {};
  options.bulk_streams = 17;
  EXPECT_FALSE(NewGrpcCarrier(options).ok());
  options = {};
  options.piece_bytes = 1000;
  EXPECT_FALSE(NewGrpcCarrier(options).ok());
}

TEST(GrpcCarrier, ListenNamesWhatIsWrongWithAnAddress) {
  auto carrier = *NewGrpcCarrier(PatientOptions());
  auto accept = [](std::shared_ptr<Link>) { return nullptr; };
  EXPECT_TRUE(absl::StrContains(carrier->Listen("nonsense", accept).status().message(), "port"));
  EXPECT_EQ(carrier->Listen("192.0.2.1:1", accept).status().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(carrier->Listen("127.0.0.1:0", accept).ok());
  EXPECT_EQ(carrier->Listen("127.0.0.1:0", accept).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace psd::carrier
