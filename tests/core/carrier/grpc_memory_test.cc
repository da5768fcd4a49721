// Links whose worker has used up its memory budget.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/carrier/frame.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "tests/core/carrier/raw_peer.h"
#include "tests/core/carrier/recorder.h"

namespace psd::carrier {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// The options of ends that wait for a peer for longer than a busy machine keeps it waiting.
GrpcCarrierOptions Patient() {
  GrpcCarrierOptions options;
  options.keepalive_time = options.keepalive_timeout = absl::Seconds(60);
  options.handshake_timeout = absl::Seconds(60);
  return options;
}

// Makes a message with one buffer of `bytes`.
Message MessageOf(const std::string& header, size_t bytes) {
  Message message;
  message.header = header;
  message.buffers.push_back(Buffer::FromString(std::string(bytes, 'x')));
  return message;
}

// A receiver with a budget of 8 MiB. Transit may have 6.75 MiB of it, and 6.5 MiB are in use.
class FullReceiver {
 public:
  explicit FullReceiver(absl::Duration patience) {
    GrpcCarrierOptions options = Patient();
    options.memory = budget_;
    options.room_patience = patience;
    server_ = *NewGrpcCarrier(options);
    address_ = *server_->Listen("127.0.0.1:0", [this](std::shared_ptr<Link> link) {
      heard_->SetLink(std::move(link));
      return heard_;
    });
    sender_ = Connect();
  }
  ~FullReceiver() {
    EXPECT_TRUE(heard_->closed().empty());
    EXPECT_TRUE(sender_->closed().empty());
    client_->Shutdown();
    server_->Shutdown();
    heard_->SetLink(nullptr);
    sender_->SetLink(nullptr);
  }

  // Connects another sender.
  std::shared_ptr<Recorder> Connect() {
    const auto sender = std::make_shared<Recorder>();
    auto link = ConnectAndWait(*client_, address_, sender);
    EXPECT_TRUE(link.ok()) << link.status();
    return sender;
  }
  void Send(Message message) { EXPECT_TRUE(sender_->WaitForLink()->Send(std::move(message)).ok()); }
  void MakeRoom() { in_use_.reset(); }
  Recorder& heard() { return *heard_; }

 private:
  const std::shared_ptr<MemoryBudget> budget_ = MemoryBudget::Create(8 * kMiB);
  MemoryCharge in_use_ = *budget_->transit()->Charge(6 * kMiB + kMiB / 2);
  const std::shared_ptr<Recorder> heard_ = std::make_shared<Recorder>();
  std::shared_ptr<Recorder> sender_;
  std::string address_;
  std::shared_ptr<Carrier> server_;
  const std::shared_ptr<Carrier> client_ = *NewGrpcCarrier(Patient());
};

// Large messages, of which the budget has room for only a few at a time. They are sent whole, in
// large pieces, and in so many small ones that the sender is told when there is room.
struct Cut {
  std::string name;
  size_t message_bytes = 0;
  size_t piece_bytes = 0;
};
class OneAfterAnotherTest : public testing::TestWithParam<Cut> {};

TEST_P(OneAfterAnotherTest, AllOfThemArriveThoughNoneWaitsLong) {
  GrpcCarrierOptions receiving = Patient();
  receiving.memory = MemoryBudget::Create(8 * kMiB);
  receiving.room_patience = absl::Hours(1);
  const auto server = *NewGrpcCarrier(receiving);
  const auto heard = std::make_shared<Recorder>(), sender = std::make_shared<Recorder>();
  heard->CountOnly();
  const auto address = server->Listen("127.0.0.1:0", [&](std::shared_ptr<Link> link) {
    heard->SetLink(std::move(link));
    return heard;
  });
  GrpcCarrierOptions sending = Patient();
  sending.piece_bytes = GetParam().piece_bytes;
  const auto client = *NewGrpcCarrier(sending);
  ASSERT_TRUE(ConnectAndWait(*client, *address, sender).ok());
  const size_t messages = 120 * kMiB / GetParam().message_bytes;
  for (size_t i = 0; i < messages; ++i) {
    const size_t bytes = GetParam().message_bytes / (i % 3 == 2 ? 2 : 1);
    ASSERT_TRUE(sender->WaitForLink()->Send(MessageOf("", bytes)).ok());
  }
  EXPECT_TRUE(heard->WaitForMessages(messages));
  EXPECT_TRUE(heard->refused().empty());
  EXPECT_TRUE(heard->closed().empty());
  client->Shutdown();
  server->Shutdown();
  heard->SetLink(nullptr);
  sender->SetLink(nullptr);
}

INSTANTIATE_TEST_SUITE_P(Sizes, OneAfterAnotherTest,
                         testing::Values(Cut{"Whole", 2 * kMiB, kMiB},
                                         Cut{"SmallPieces", 6 * kMiB, 64 << 10},
                                         Cut{"LargePieces", 6 * kMiB, kMiB}),
                         [](const auto& info) { return info.param.name; });

// The messages are sent in one frame, and in pieces over several streams.
class FullBudgetTest : public testing::TestWithParam<size_t> {};

TEST_P(FullBudgetTest, AMessageWaitsForRoomWhileSmallOnesPass) {
  FullReceiver receiver(absl::Hours(1));
  receiver.Send(MessageOf("large", GetParam()));
  receiver.Send(MessageOf("small", 1000));
  ASSERT_TRUE(receiver.heard().WaitForMessages(1));
  EXPECT_EQ(receiver.heard().TakeMessages().at(0).header, "small");
  receiver.MakeRoom();
  ASSERT_TRUE(receiver.heard().WaitForMessages(2));
  const Message large = receiver.heard().TakeMessages().at(0);
  EXPECT_EQ(large.header, "large");
  EXPECT_EQ(large.buffers.at(0).view(), std::string(GetParam(), 'x'));
}

TEST_P(FullBudgetTest, AMessageThatWaitedTooLongIsRefusedAndTheLinkLivesOn) {
  FullReceiver receiver(absl::Milliseconds(20));
  receiver.Send(MessageOf("large", GetParam()));
  ASSERT_TRUE(receiver.heard().WaitForRefused(1));
  EXPECT_EQ(receiver.heard().refused().at(0).first, "large");
  EXPECT_EQ(receiver.heard().refused().at(0).second.code(), absl::StatusCode::kResourceExhausted);
  receiver.MakeRoom();
  receiver.Send(MessageOf("again", GetParam()));
  ASSERT_TRUE(receiver.heard().WaitForMessages(1));
  EXPECT_EQ(receiver.heard().TakeMessages().at(0).header, "again");
}

TEST(FullBudget, WhatWaitsForRoomDoesNotFillTheBuffersOfTheNetwork) {
  constexpr size_t kLinks = 12, kBytes = 2 * kMiB;
  FullReceiver receiver(absl::Hours(1));
  std::vector<std::shared_ptr<Recorder>> senders;
  for (size_t i = 0; i < kLinks; ++i) {
    senders.push_back(receiver.Connect());
    ASSERT_TRUE(senders.back()->WaitForLink()->Send(MessageOf("", kBytes)).ok());
  }
  // At most 16 MiB may wait, half of gRPC's smallest quota.
  ASSERT_TRUE(receiver.heard().WaitForRefused(kLinks - 16 * kMiB / kBytes));
  receiver.heard().CountOnly();
  receiver.MakeRoom();
  const absl::Time until = absl::Now() + kPatience;
  while (receiver.heard().refused().size() + receiver.heard().count() < kLinks &&
         absl::Now() < until) {
    std::this_thread::yield();
  }
  EXPECT_EQ(receiver.heard().refused().size() + receiver.heard().count(), kLinks);
  EXPECT_GE(receiver.heard().count(), 7u);
  for (const auto& sender : senders) {
    EXPECT_TRUE(sender->closed().empty());
    sender->SetLink(nullptr);
  }
}

std::string Wire(FrameEncoder& frames) {
  std::string wire;
  for (const Buffer& part : frames.Take()) wire.append(part.view().data(), part.size());
  return wire;
}

// A peer that opens a link and reads nothing.
class DeafPeer {
 public:
  explicit DeafPeer(const std::string& address, size_t max_unread_bytes = 0) : address_(address) {
    HelloFrame hello;
    hello.max_unread_bytes = max_unread_bytes;
    Open(control_, hello);
  }

  // Says that it has read so many bytes of whole messages.
  void SayThatItHasRead(uint64_t bytes) {
    FrameEncoder frames;
    frames.Read({StreamRole::kWhole, bytes});
    control_.Send(Wire(frames));
  }

  // Reads `count` whole messages, with the hello before them. It says nothing of that.
  void ReadWhole(int count) {
    if (!whole_.has_value()) {
      HelloFrame hello;
      hello.role = StreamRole::kWhole;
      Open(whole_.emplace(address_, kMethod), hello);
    }
    for (int i = 0; i < count; ++i) EXPECT_TRUE(whole_->Receive());
  }

  // Sends one piece of a message of 8 MiB.
  void StopInTheMiddle() {
    HelloFrame hello;
    hello.role = StreamRole::kBulk;
    Open(bulk_.emplace(address_, kMethod), hello);
    const Message message = MessageOf("never whole", 8 * kMiB);
    FrameEncoder frames;
    frames.Announce({1, kMiB, ShapeOf(message)});
    PieceCursor cursor;
    frames.Piece(1, message, kMiB, &cursor);
    bulk_->Send(Wire(frames));
  }

 private:
  static constexpr char kMethod[] = "/psd.v1.Worker/Exchange";
  static void Open(RawPeer& stream, const HelloFrame& hello) {
    FrameEncoder frames;
    frames.Hello(hello);
    stream.Send(Wire(frames));
  }

  const std::string address_;
  RawPeer control_{address_, kMethod};
  std::optional<RawPeer> bulk_;
  std::optional<RawPeer> whole_;
};

// A receiver that records the events of its link.
class Listener {
 public:
  explicit Listener(const GrpcCarrierOptions& options) : carrier_(*NewGrpcCarrier(options)) {
    address_ = *carrier_->Listen("127.0.0.1:0", [this](std::shared_ptr<Link> link) {
      recorder_->SetLink(std::move(link));
      return recorder_;
    });
  }
  ~Listener() {
    recorder_->SetLink(nullptr);
    carrier_->Shutdown();
  }

  const std::string& address() const { return address_; }
  std::shared_ptr<Link> link() { return recorder_->WaitForLink(); }
  absl::Status WaitForEnd() {
    if (!recorder_->WaitForClosed()) return absl::OkStatus();
    return recorder_->closed().at(0);
  }

 private:
  const std::shared_ptr<Carrier> carrier_;
  const std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
  std::string address_;
};

TEST(FullBudget, WhatAPeerDoesNotReadIsChargedAndInTheEndEndsItsLink) {
  GrpcCarrierOptions options = Patient();
  options.memory = MemoryBudget::Create(64 * kMiB);
  {
    Listener listener(options);
    DeafPeer peer(listener.address());
    Message answer;
    answer.header = std::string(60'000, 'x');
    size_t sent = 0;
    while (sent < 10'000 && listener.link()->Send(answer).ok()) ++sent;
    EXPECT_LT(sent, 64 * kMiB / answer.header.size());
    EXPECT_EQ(listener.WaitForEnd().code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_EQ(options.memory->transit()->used_bytes(), 0u);
}

// The peer reads everything at once, so gRPC's own window is never full.
TEST(UnreadBytes, ASenderWaitsUntilThePeerSaysThatItHasRead) {
  GrpcCarrierOptions options = Patient();
  options.stall_timeout = absl::Seconds(5);
  Listener listener(options);
  DeafPeer peer(listener.address(), 3 * kMiB);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(listener.link()->Send(MessageOf("", 3 * kMiB / 2)).ok());
  peer.ReadWhole(2);
  peer.SayThatItHasRead(3 * kMiB);
  peer.ReadWhole(2);
  // The fifth message waits, and nothing moves.
  const absl::Status end = listener.WaitForEnd();
  EXPECT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(end.message().find("reads nothing of the 1572"), absl::string_view::npos) << end;
}

TEST(UnreadBytes, APeerThatSaysThatItHasReadMoreThanItWasSentEndsItsLink) {
  Listener listener(Patient());
  DeafPeer peer(listener.address(), 3 * kMiB);
  ASSERT_TRUE(listener.link()->Send(MessageOf("", kMiB)).ok());
  peer.ReadWhole(1);
  peer.SayThatItHasRead(kMiB + 1);
  const absl::Status end = listener.WaitForEnd();
  EXPECT_EQ(end.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(end.message().find("1048577"), absl::string_view::npos) << end;
}

// Messages of small buffers that no account has charged, sent in one frame and in pieces.
class SlowReaderTest : public testing::TestWithParam<size_t> {};

TEST_P(SlowReaderTest, WhatWaitsForItIsBoundedByTheBudgetAndTheLinkLivesOn) {
  GrpcCarrierOptions options = Patient();
  options.memory = MemoryBudget::Create(64 * kMiB);
  {
    Listener listener(options);
    DeafPeer peer(listener.address());
    Message answer;
    const Buffer small = Buffer::FromString(std::string(32 << 10, 'x'));
    answer.buffers.assign(GetParam() / small.size(), small);
    absl::Status sent;
    for (int i = 0; i < 100 && sent.ok(); ++i) sent = listener.link()->Send(answer);
    EXPECT_EQ(sent.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(sent.message().find("cannot be queued"), absl::string_view::npos) << sent;
    EXPECT_TRUE(listener.link()->Send(MessageOf("", 1000)).ok()) << "control goes on";
    listener.link()->Close();
    EXPECT_EQ(listener.WaitForEnd().code(), absl::StatusCode::kCancelled);
  }
  EXPECT_EQ(options.memory->transit()->used_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Sizes, SlowReaderTest, testing::Values(kMiB, 4 * kMiB),
                         [](const auto& info) {
                           return std::to_string(info.param / kMiB) + "MiB";
                         });

TEST(FullBudget, LinksAreBoundedByTheBudget) {
  GrpcCarrierOptions options = Patient();
  options.memory = MemoryBudget::Create(kMiB);
  Listener listener(options);
  const auto client = *NewGrpcCarrier(Patient());
  std::vector<std::shared_ptr<Recorder>> ends;
  absl::Status last;
  while (ends.size() < 200 && last.ok()) {
    ends.push_back(std::make_shared<Recorder>());
    last = ConnectAndWait(*client, listener.address(), ends.back()).status();
  }
  EXPECT_GT(ends.size(), 64u);
  EXPECT_NE(last.message().find("the budget is 1048576 bytes"), absl::string_view::npos) << last;
  EXPECT_TRUE(ends.front()->WaitForLink()->Send(MessageOf("", 1000)).ok()) << "the others live on";
  EXPECT_TRUE(ends.front()->closed().empty());
  client->Shutdown();
  for (const auto& end : ends) end->SetLink(nullptr);
}

TEST(Stalls, APeerThatReadsNothingLosesItsLink) {
  GrpcCarrierOptions options = Patient();
  options.stall_timeout = absl::Milliseconds(100);
  Listener listener(options);
  DeafPeer peer(listener.address());
  ASSERT_TRUE(listener.link()->Send(MessageOf("", 4 * kMiB)).ok());
  EXPECT_EQ(listener.WaitForEnd().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(Stalls, AMessageThatStopsInTheMiddleGivesItsMemoryBack) {
  GrpcCarrierOptions options = Patient();
  options.memory = MemoryBudget::Create(64 * kMiB);
  options.stall_timeout = absl::Milliseconds(100);
  Listener listener(options);
  DeafPeer peer(listener.address());
  ASSERT_NE(listener.link(), nullptr);
  peer.StopInTheMiddle();
  EXPECT_EQ(listener.WaitForEnd().code(), absl::StatusCode::kDeadlineExceeded);
  while (options.memory->transit()->used_bytes() > 0) std::this_thread::yield();
}

INSTANTIATE_TEST_SUITE_P(Sizes, FullBudgetTest, testing::Values(kMiB, 4 * kMiB),
                         [](const auto& info) {
                           return std::to_string(info.param / kMiB) + "MiB";
                         });

}  // namespace
}  // namespace psd::carrier
