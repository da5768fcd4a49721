#pragma once

// The conformance tests of carriers. A backend joins by deriving a World and instantiating the
// suite:
//
//   class MyWorld : public CarrierWorld { ... };
//   INSTANTIATE_TEST_SUITE_P(Mine, CarrierSuite, testing::Values(
//       [] { return std::unique_ptr<CarrierWorld>(new MyWorld); }));

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/buffer.h"
#include "core/carrier/carrier.h"
#include "tests/core/carrier/recorder.h"

namespace psd::carrier {

class CarrierWorld {
 public:
  virtual ~CarrierWorld() = default;
  virtual std::shared_ptr<Carrier> NewCarrier(const Limits& limits) = 0;
  // An address to listen at. The carrier chooses a free port, or the corresponding part of its
  // addresses.
  virtual std::string AnyAddress() = 0;
  // An address where nobody listens.
  virtual std::string DeadAddress() = 0;
  // An address that accepts connections and never answers.
  virtual std::string SilentAddress() = 0;
  // Another address that leads to `address`. CutRoute breaks its connections, as if the peer died.
  virtual std::string RouteTo(const std::string& address) = 0;
  virtual void CutRoute() = 0;
};

using MakeWorld = std::function<std::unique_ptr<CarrierWorld>()>;

class CarrierSuite : public testing::TestWithParam<MakeWorld> {
 protected:
  CarrierSuite() : world_(GetParam()()) { Restart({}); }

  // Makes two new carriers. The server records every link that it accepts.
  void Restart(const Limits& limits) {
    client_ = world_->NewCarrier(limits);
    server_ = world_->NewCarrier(limits);
    auto address = server_->Listen(world_->AnyAddress(), [this](std::shared_ptr<Link> link) {
      return Accept(std::move(link));
    });
    ASSERT_TRUE(address.ok()) << address.status();
    address_ = *address;
  }

  // Sets the hooks for the recorders of later links.
  void SetServerHooks(Recorder::OnMessageHook on_message, Recorder::OnClosedHook on_closed) {
    MutexLock lock(mutex_);
    server_on_message_ = std::move(on_message);
    server_on_closed_ = std::move(on_closed);
  }

  std::shared_ptr<LinkHandler> Accept(std::shared_ptr<Link> link) {
    auto recorder = std::make_shared<Recorder>();
    MutexLock lock(mutex_);
    recorder->SetOnMessage(server_on_message_);
    recorder->SetOnClosed(server_on_closed_);
    recorder->SetLink(std::move(link));
    if (decline_) return nullptr;
    accepted_.push_back(recorder);
    changed_.NotifyAll();
    return recorder;
  }

  std::shared_ptr<Recorder> Accepted(size_t index) {
    MutexLock lock(mutex_);
    while (accepted_.size() <= index && changed_.WaitFor(mutex_, kPatience)) {
    }
    return index < accepted_.size() ? accepted_[index] : nullptr;
  }

  // Opens a link with a recorder at each end.
  void Open() {
    near_ = std::make_shared<Recorder>();
    auto link = ConnectAndWait(*client_, address_, near_);
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *link;
    far_ = Accepted(0);
    ASSERT_NE(far_, nullptr);
    far_link_ = far_->WaitForLink();
  }

  void TearDown() override {
    client_->Shutdown();
    server_->Shutdown();
    MutexLock lock(mutex_);
    for (const auto& recorder : accepted_) {
      EXPECT_EQ(recorder->closed().size(), 1u) << "OnClosed must come exactly once";
      EXPECT_EQ(recorder->after_close(), 0u) << "OnMessage after OnClosed";
      recorder->SetLink(nullptr);
    }
    if (near_ != nullptr) {
      EXPECT_EQ(near_->closed().size(), 1u);
      EXPECT_EQ(near_->after_close(), 0u);
      near_->SetLink(nullptr);
    }
  }

  static Message Small(const std::string& header) {
    Message message;
    message.header = header;
    return message;
  }

  // Returns `size` bytes that depend on `seed` alone.
  static Buffer Pattern(size_t size, uint32_t seed) {
    std::string bytes(size, '\0');
    uint32_t state = seed * 2654435761u + 1;
    for (char& byte : bytes) {
      state = state * 1664525u + 1013904223u;
      byte = static_cast<char>(state >> 24);
    }
    return Buffer::FromString(std::move(bytes));
  }

  static Message WithBuffers(const std::string& header, const std::vector<size_t>& sizes) {
    Message message;
    message.header = header;
    for (size_t i = 0; i < sizes.size(); ++i) {
      message.buffers.push_back(Pattern(sizes[i], static_cast<uint32_t>(i)));
    }
    return message;
  }

  static void ExpectSame(const Message& got, const Message& sent) {
    EXPECT_EQ(got.header.size(), sent.header.size());
    EXPECT_TRUE(got.header == sent.header);
    ASSERT_EQ(got.buffers.size(), sent.buffers.size());
    for (size_t i = 0; i < sent.buffers.size(); ++i) {
      EXPECT_TRUE(got.buffers[i].view() == sent.buffers[i].view()) << "buffer " << i;
    }
  }

  // Sends `message` to the far end and checks that it arrives complete.
  void ExpectArrives(const Message& message) {
    size_t before = far_->count();
    far_->TakeMessages();
    ASSERT_TRUE(link_->Send(message).ok());
    ASSERT_TRUE(far_->WaitForMessages(before + 1));
    std::vector<Message> got = far_->TakeMessages();
    ASSERT_EQ(got.size(), 1u);
    ExpectSame(got[0], message);
  }

  const std::unique_ptr<CarrierWorld> world_;
  Mutex mutex_;
  CondVar changed_;
  Recorder::OnMessageHook server_on_message_;
  Recorder::OnClosedHook server_on_closed_;
  bool decline_ = false;
  std::vector<std::shared_ptr<Recorder>> accepted_;
  std::shared_ptr<Carrier> client_;
  std::shared_ptr<Carrier> server_;
  std::string address_;
  std::shared_ptr<Recorder> near_;
  std::shared_ptr<Recorder> far_;
  std::shared_ptr<Link> link_;
  std::shared_ptr<Link> far_link_;
};

TEST_P(CarrierSuite, SmallMessagesArriveInOrder) {
  Open();
  for (int i = 0; i < 2000; ++i) {
    Message message = Small(absl::StrCat(i));
    if (i % 3 == 0) message.buffers.push_back(Pattern(i, i));
    ASSERT_TRUE(link_->Send(message).ok());
  }
  ASSERT_TRUE(far_->WaitForMessages(2000));
  std::vector<Message> got = far_->TakeMessages();
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(got[i].header, absl::StrCat(i));
  ASSERT_EQ(got[999].buffers.size(), 1u);
  EXPECT_TRUE(got[999].buffers[0].view() == Pattern(999, 999).view());
}

TEST_P(CarrierSuite, EitherEndSends) {
  SetServerHooks([](Link& link, const Message& message) { ASSERT_TRUE(link.Send(message).ok()); },
                 nullptr);
  Open();
  Message large = WithBuffers("large", {300'000});
  ASSERT_TRUE(link_->Send(Small("small")).ok());
  ASSERT_TRUE(link_->Send(large).ok());
  ASSERT_TRUE(near_->WaitForMessages(2));
  std::vector<Message> got = near_->TakeMessages();
  size_t index = got[0].header == "large" ? 0 : 1;
  ExpectSame(got[index], large);
  EXPECT_EQ(got[1 - index].header, "small");
}

TEST_P(CarrierSuite, TheAcceptingEndMaySendLargeMessagesFirst) {
  Open();
  Message large = WithBuffers("pull", {5'000'000, 7});
  ASSERT_TRUE(far_link_->Send(large).ok());
  ASSERT_TRUE(near_->WaitForMessages(1));
  ExpectSame(near_->TakeMessages()[0], large);
}

TEST_P(CarrierSuite, MessagesOfManyShapesArriveWhole) {
  Open();
  ExpectArrives(Small(""));
  ExpectArrives(WithBuffers("", {0}));
  ExpectArrives(WithBuffers("zero sizes", {0, 0, 5, 0}));
  ExpectArrives(WithBuffers("at the bound", {(64 << 10) - 12}));
  ExpectArrives(WithBuffers("past the bound", {(64 << 10) - 13, 0}));
  ExpectArrives(WithBuffers("whole, at the bound", {(2 << 20) - 19}));
  ExpectArrives(WithBuffers("pieces, past the bound", {(2 << 20) - 22, 1}));
  ExpectArrives(WithBuffers("zeros between pieces", {0, 1 << 20, 0, 0, 1 << 20, 0}));
  ExpectArrives(WithBuffers("odd", {1'048'577, 3, 999'999}));
  ExpectArrives(WithBuffers("a thousand small", std::vector<size_t>(1000, 40)));
  ExpectArrives(WithBuffers("a thousand", std::vector<size_t>(1000, 1024)));
}

TEST_P(CarrierSuite, HeadersMayBeLarge) {
  Open();
  ExpectArrives(Small(std::string(15 << 20, 'h')));
  Message both = WithBuffers(std::string(100'000, 'h'), {70'000, 1});
  ExpectArrives(both);
}

TEST_P(CarrierSuite, MessagesOfAllSizesCrossBothWaysAtOnce) {
  Open();
  far_->CountOnly();
  near_->CountOnly();
  constexpr int kRounds = 20;
  for (int i = 0; i < kRounds; ++i) {
    for (const size_t bytes : {size_t{10}, size_t{70'000}, size_t{2} << 20, size_t{3} << 20}) {
      ASSERT_TRUE(link_->Send(WithBuffers("there", {bytes})).ok());
      ASSERT_TRUE(far_link_->Send(WithBuffers("back", {bytes})).ok());
    }
  }
  EXPECT_TRUE(far_->WaitForMessages(4 * kRounds));
  EXPECT_TRUE(near_->WaitForMessages(4 * kRounds));
}

TEST_P(CarrierSuite, BuffersAreAligned) {
  Open();
  ASSERT_TRUE(link_->Send(WithBuffers("a", {3, 100, 65})).ok());
  ASSERT_TRUE(link_->Send(WithBuffers("b", {3, 100'000, 5, 7, 300'000})).ok());
  ASSERT_TRUE(far_->WaitForMessages(2));
  if (client_->Name() == "faulty") return;  // it passes the sender's own buffers on
  for (const Message& message : far_->TakeMessages()) {
    for (const Buffer& buffer : message.buffers) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kBlockAlignment, 0u);
    }
  }
}

TEST_P(CarrierSuite, BulkDoesNotHoldUpControl) {
  // The far end receives bulk as fast as it can, and a small message that is sent later overtakes
  // it.
  Open();
  far_->CountOnly();
  std::atomic<int> small_before_large{0};
  std::atomic<bool> large_came{false};
  far_->SetOnMessage([&](Link&, const Message& message) {
    if (message.TotalBytes() > 1000) {
      large_came = true;
    } else if (!large_came) {
      ++small_before_large;
    }
  });
  // The faulty carrier delays messages, and large messages that are lent arrive at once.
  const bool may_overtake = client_->Name() != "faulty" && client_->Name() != "lending";
  const Buffer bytes = Pattern(16 << 20, 1);
  // If this thread is kept waiting in a round, its large messages may have come before it sends the
  // small one.
  for (int round = 1; round <= 20 && small_before_large == 0; ++round) {
    large_came = false;
    for (int i = 0; i < 4; ++i) {
      Message large = Small("large");
      large.buffers.push_back(bytes);
      ASSERT_TRUE(link_->Send(large).ok());
    }
    ASSERT_TRUE(link_->Send(Small("control")).ok());
    ASSERT_TRUE(far_->WaitForMessages(5 * round));
    if (!may_overtake) return;
  }
  EXPECT_EQ(small_before_large, 1);
}

TEST_P(CarrierSuite, CloseIsHeardAtBothEnds) {
  Open();
  ASSERT_TRUE(link_->Send(Small("last words")).ok());
  link_->Close();
  link_->Close();
  ASSERT_TRUE(near_->WaitForClosed());
  ASSERT_TRUE(far_->WaitForClosed());
  EXPECT_EQ(near_->closed()[0].code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(far_->closed()[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(far_->count(), 1u);
}

TEST_P(CarrierSuite, TheAcceptingEndMayClose) {
  Open();
  ASSERT_TRUE(far_link_->Send(Small("bye")).ok());
  far_link_->Close();
  ASSERT_TRUE(near_->WaitForClosed());
  ASSERT_TRUE(far_->WaitForClosed());
  EXPECT_EQ(far_->closed()[0].code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(near_->closed()[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(near_->count(), 1u);
}

TEST_P(CarrierSuite, CloseAndSendWorkInsideCallbacks) {
  SetServerHooks([](Link& link, const Message&) { link.Close(); },
                 [](Link& link) {
                   link.Close();
                   EXPECT_EQ(link.Send(Message()).code(), absl::StatusCode::kUnavailable);
                 });
  Open();
  ASSERT_TRUE(link_->Send(Small("close, please")).ok());
  ASSERT_TRUE(far_->WaitForClosed());
  ASSERT_TRUE(near_->WaitForClosed());
}

TEST_P(CarrierSuite, SendAfterCloseIsRefused) {
  Open();
  link_->Close();
  EXPECT_EQ(link_->Send(Small("late")).code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(near_->WaitForClosed());
  EXPECT_EQ(link_->Send(WithBuffers("late", {100'000})).code(), absl::StatusCode::kUnavailable);
}

TEST_P(CarrierSuite, MessagesBeyondTheLimitsAreRefused) {
  Limits limits;
  limits.max_header_bytes = 1000;
  limits.max_message_bytes = 1'000'000;
  limits.max_buffers = 10;
  client_->Shutdown();
  server_->Shutdown();
  Restart(limits);
  Open();
  EXPECT_EQ(link_->Send(Small(std::string(1001, 'x'))).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(link_->Send(WithBuffers("", {1'000'001})).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(link_->Send(WithBuffers("", std::vector<size_t>(11, 0))).code(),
            absl::StatusCode::kInvalidArgument);
  ExpectArrives(WithBuffers("fits", {900'000}));
}

TEST_P(CarrierSuite, TheSendQueueIsBounded) {
  Limits limits;
  limits.max_send_queue_bytes = 1'000'000;
  client_->Shutdown();
  server_->Shutdown();
  Restart(limits);
  Open();
  EXPECT_EQ(link_->Send(WithBuffers("", {1'000'001})).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(link_->Send(Small(std::string(2'000'000, 'x'))).ok());
  ASSERT_TRUE(far_->WaitForMessages(1));
}

TEST_P(CarrierSuite, ManyLargeMessagesStayWithinTheAssemblyBound) {
  Limits limits;
  limits.max_assembly_bytes = 3'000'000;
  client_->Shutdown();
  server_->Shutdown();
  Restart(limits);
  Open();
  far_->CountOnly();
  Message message = WithBuffers("", {2'000'000});
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(link_->Send(message).ok());
  ASSERT_TRUE(far_->WaitForMessages(20));
}

TEST_P(CarrierSuite, APeerThatDiesEndsTheLink) {
  address_ = world_->RouteTo(address_);
  Open();
  ExpectArrives(WithBuffers("alive", {100'000}));
  world_->CutRoute();
  ASSERT_TRUE(near_->WaitForClosed());
  ASSERT_TRUE(far_->WaitForClosed());
  EXPECT_EQ(near_->closed()[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(far_->closed()[0].code(), absl::StatusCode::kUnavailable);
}

TEST_P(CarrierSuite, APeerThatDiesMidTransferEndsTheLink) {
  address_ = world_->RouteTo(address_);
  Open();
  far_->CountOnly();
  Buffer bytes = Pattern(32 << 20, 1);
  for (int i = 0; i < 8; ++i) {
    Message large;
    large.buffers.push_back(bytes);
    ASSERT_TRUE(link_->Send(large).ok());
  }
  world_->CutRoute();
  ASSERT_TRUE(near_->WaitForClosed());
  ASSERT_TRUE(far_->WaitForClosed());
}

TEST_P(CarrierSuite, LinksAreIndependent) {
  constexpr int kLinks = 20;
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (int i = 0; i < kLinks; ++i) {
    recorders.push_back(std::make_shared<Recorder>());
    auto link = ConnectAndWait(*client_, address_, recorders.back());
    ASSERT_TRUE(link.ok()) << link.status();
    ASSERT_TRUE((*link)->Send(Small(absl::StrCat(i))).ok());
  }
  for (int i = 0; i < kLinks; ++i) {
    std::shared_ptr<Recorder> far = Accepted(i);
    ASSERT_TRUE(far->WaitForMessages(1));
    if (i % 2 == 0) far->WaitForLink()->Close();
  }
  int closed = 0;
  for (int i = 0; i < kLinks; ++i) {
    if (i % 2 == 0) closed += Accepted(i)->WaitForClosed();
  }
  EXPECT_EQ(closed, kLinks / 2);
  for (const auto& recorder : recorders) recorder->SetLink(nullptr);
}

TEST_P(CarrierSuite, ConnectIsRefusedWhereNobodyListens) {
  auto recorder = std::make_shared<Recorder>();
  auto link = ConnectAndWait(*client_, world_->DeadAddress(), recorder);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(link.status().message(), "refused")) << link.status();
  EXPECT_TRUE(recorder->closed().empty());
}

TEST_P(CarrierSuite, ConnectGivesUpAfterItsTimeout) {
  auto recorder = std::make_shared<Recorder>();
  auto link = ConnectAndWait(*client_, world_->SilentAddress(), recorder, absl::Milliseconds(100));
  EXPECT_EQ(link.status().code(), absl::StatusCode::kDeadlineExceeded) << link.status();
  EXPECT_TRUE(recorder->closed().empty());
}

TEST_P(CarrierSuite, TheListenerMayDecline) {
  {
    MutexLock lock(mutex_);
    decline_ = true;
  }
  auto recorder = std::make_shared<Recorder>();
  auto link = ConnectAndWait(*client_, address_, recorder);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(absl::StrContains(link.status().message(), "refused")) << link.status();
  EXPECT_TRUE(recorder->closed().empty());
}

TEST_P(CarrierSuite, ListenSaysWhyItCannot) {
  std::shared_ptr<Carrier> other = world_->NewCarrier({});
  auto address = other->Listen(address_, [](std::shared_ptr<Link>) { return nullptr; });
  EXPECT_EQ(address.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(address.status().message(), address_)) << address.status();
  EXPECT_TRUE(absl::StrContains(address.status().message(), "in use")) << address.status();
}

TEST_P(CarrierSuite, ShutdownWithTrafficInFlight) {
  SetServerHooks(
      [](Link& link, const Message& message) {
        absl::Status ignored = link.Send(message);
        static_cast<void>(ignored);
      },
      nullptr);
  Open();
  near_->CountOnly();
  far_->CountOnly();
  std::thread sender([this] {
    Message large = WithBuffers("large", {1'000'000});
    while (link_->Send(Small("x")).ok() && link_->Send(large).ok()) std::this_thread::yield();
  });
  ASSERT_TRUE(near_->WaitForMessages(20));
  client_->Shutdown();
  size_t heard = near_->count();
  EXPECT_EQ(near_->closed().size(), 1u);
  sender.join();
  EXPECT_EQ(near_->count(), heard);
}

TEST_P(CarrierSuite, ConnectAfterShutdownFails) {
  client_->Shutdown();
  client_->Shutdown();
  auto recorder = std::make_shared<Recorder>();
  EXPECT_EQ(ConnectAndWait(*client_, address_, recorder).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_P(CarrierSuite, ManyThreadsSendAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  Open();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < kEach; ++i) {
        Message message = Small(absl::StrCat(t, " ", i));
        if (i % 100 == 0) message.buffers.push_back(Pattern(200'000, i));
        ASSERT_TRUE(link_->Send(message).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(far_->WaitForMessages(kThreads * kEach));
  std::vector<int> next(kThreads, 0);
  for (const Message& message : far_->TakeMessages()) {
    if (!message.buffers.empty()) continue;
    int thread = message.header[0] - '0';
    int number = std::stoi(message.header.substr(2));
    EXPECT_GE(number, next[thread]);
    next[thread] = number;
  }
}

}  // namespace psd::carrier
