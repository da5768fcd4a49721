// Sends bytes that no correct peer sends to the port of a daemon that also serves an honest client.

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "core/carrier/frame.h"
#include "core/rpc/header_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/crash/process_world.h"
#include "tests/crash/training.h"

namespace psd::crash {
namespace {

using ::testing::Each;

// Sends `bytes` on a new connection. Returns when the daemon has closed the connection, or after a
// timeout if it waits for more bytes.
void SendRaw(const std::string& address, const std::string& bytes) {
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(connect(descriptor, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = send(descriptor, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) break;  // the daemon has closed the connection
    sent += static_cast<size_t>(count);
  }
  pollfd answer = {descriptor, POLLIN, 0};
  poll(&answer, 1, 100);
  close(descriptor);
}

// Sends `messages` on a stream between workers. Returns the status of the stream once the daemon
// has ended it.
grpc::Status SayOnAStream(const std::string& address, const std::vector<std::string>& messages) {
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  auto stream = stub.PrepareCall(&context, "/psd.v1.Worker/Exchange", &queue);
  auto await = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  stream->StartCall(nullptr);
  bool open = await();
  for (const std::string& message : messages) {
    if (!open) break;
    grpc::Slice slice(message);
    stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    open = await();
  }
  grpc::ByteBuffer answer;
  for (bool more = true; more;) {
    stream->Read(&answer, nullptr);
    more = await();
  }
  grpc::Status status;
  stream->Finish(&status, nullptr);
  await();
  queue.Shutdown();
  while (await()) {
  }
  return status;
}

std::string Wire(const std::function<void(carrier::FrameEncoder&)>& append) {
  carrier::FrameEncoder encoder;
  append(encoder);
  std::string wire;
  for (const Buffer& part : encoder.Take()) wire.append(part.view().data(), part.size());
  return wire;
}

std::string HelloFrame(uint8_t token) {
  carrier::HelloFrame hello;
  hello.token.fill(token);
  return Wire([&](carrier::FrameEncoder& encoder) { encoder.Hello(hello); });
}

std::string HeaderFrame(std::string header) {
  carrier::Message message;
  message.header = std::move(header);
  return Wire([&](carrier::FrameEncoder& encoder) { encoder.Whole(message); });
}

class HostilePeerTest : public ::testing::Test {
 protected:
  HostilePeerTest()
      : honest_(Must(Worker::Start(TrainerOptions("honest", {owner_.address()})))),
        training_(Must(Training::Create(*honest_, {"owner0"}, 4))) {
    epoch_ = EpochOfHonest();
  }
  // Checks that the session of the honest client is still the same, and that the owner still works.
  ~HostilePeerTest() override {
    EXPECT_EQ(EpochOfHonest(), epoch_);
    EXPECT_TRUE(training_.Pull().ok());
    EXPECT_TRUE(training_.Backward().ok());
    EXPECT_TRUE(training_.Step().status().ok());
    EXPECT_THAT(Read(*honest_, training_.parameters()[0]), Each(-1));
    const v1::WorkerStatus status = Must(StatusOf(*honest_, "owner0"));
    EXPECT_EQ(HoldingsOf(status).sessions, 1u) << "nobody else has a session";
  }

  uint64_t EpochOfHonest() {
    const v1::WorkerStatus status = Must(StatusOf(*honest_, "owner0"));
    const v1::PeerState* peer = PeerOf(status, "honest");
    return peer == nullptr ? 0 : peer->epoch_here();
  }

  Daemon owner_;
  std::unique_ptr<Worker> honest_;
  Training training_;
  uint64_t epoch_ = 0;
};

TEST_F(HostilePeerTest, BytesThatAreNoHttp) {
  std::mt19937 random(1);
  std::string noise(1 << 20, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  for (const std::string& bytes :
       {noise, preface + noise, std::string("GET / HTTP/1.1\r\n\r\n"), preface,
        preface + std::string(9, '\xff'), std::string("psd\1\1\0\0\0", 8)}) {
    SendRaw(owner_.address().address, bytes);
  }
}

TEST_F(HostilePeerTest, StreamsOfBytesThatAreNoFrames) {
  std::mt19937 random(2);
  const std::string& address = owner_.address().address;
  for (int i = 0; i < 20; ++i) {
    std::string noise(1 + random() % 5000, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    EXPECT_FALSE(SayOnAStream(address, {noise}).ok());
    EXPECT_FALSE(SayOnAStream(address, {HelloFrame(static_cast<uint8_t>(i)), noise}).ok());
  }
}

TEST_F(HostilePeerTest, FramesThatAreTruncatedOrClaimTooMuch) {
  const std::string& address = owner_.address().address;
  const std::string hello = HelloFrame(200);
  const std::string message = HeaderFrame("some header");
  for (size_t size :
       {size_t{1}, carrier::kPreambleBytes - 1, carrier::kPreambleBytes, hello.size() - 1}) {
    EXPECT_FALSE(SayOnAStream(address, {hello.substr(0, size)}).ok());
  }
  EXPECT_FALSE(SayOnAStream(address, {hello, message.substr(0, message.size() - 1)}).ok());
  EXPECT_FALSE(SayOnAStream(address, {hello, hello}).ok()) << "a second hello";
  for (size_t field : {8, 12, 16}) {  // header_bytes, buffer_count, body_bytes
    std::string claims = message;
    for (size_t i = 0; i < 4; ++i) claims[field + i] = '\x7f';
    EXPECT_FALSE(SayOnAStream(address, {hello, claims}).ok());
  }
  carrier::AnnounceFrame announce;
  announce.transfer = 1;
  announce.piece_bytes = carrier::kMinPieceBytes;
  announce.shape.buffer_bytes = {size_t{1} << 60};
  EXPECT_FALSE(SayOnAStream(address, {hello, Wire([&](carrier::FrameEncoder& encoder) {
                                        encoder.Announce(announce);
                                      })})
                   .ok());
}

TEST_F(HostilePeerTest, FramesWhoseHeadersAreNoHeaders) {
  std::mt19937 random(3);
  const std::string& address = owner_.address().address;
  rpc::Header request;
  request.kind = rpc::MessageKind::kRequest;
  request.call_id = 1;
  request.method = "value.fetch";
  const std::string legal = rpc::EncodeHeader(request);
  for (int i = 0; i < 10; ++i) {
    std::string noise(1 + random() % 500, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    noise[0] = '\x07';  // a wire type that does not exist
    EXPECT_FALSE(SayOnAStream(address, {HelloFrame(100), HeaderFrame(noise)}).ok());
  }
  EXPECT_FALSE(SayOnAStream(address, {HelloFrame(101), HeaderFrame(legal.substr(0, 5))}).ok());
}

}  // namespace
}  // namespace psd::crash
