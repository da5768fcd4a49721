// The shared-memory carrier beyond the promises of all carriers: memory, many links, idle links,
// and threads that receive while they wait.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/carrier/shm/shm_core.h"
#include "core/carrier/shm/shm_factory.h"
#include "core/carrier/shm/unix_socket.h"
#include "tests/core/carrier/recorder.h"

namespace psd::carrier {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

Message MessageOf(const std::string& header, size_t bytes) {
  Message message;
  message.header = header;
  message.buffers.push_back(Buffer::FromString(std::string(bytes, 'x')));
  return message;
}

// A server, a client, and the links between them, each with a recorder at either end.
class ShmCarrierTest : public testing::Test {
 protected:
  void TearDown() override {
    if (client_ != nullptr) client_->Shutdown();
    if (server_ != nullptr) server_->Shutdown();
    for (const auto& recorder : recorders_) recorder->SetLink(nullptr);
    for (const auto& recorder : accepted_) recorder->SetLink(nullptr);
  }

  void Start(ShmCarrierOptions options = {}, const std::string& at = "unix:@") {
    ShmCarrierOptions dialling;
    options.keepalive_time = dialling.keepalive_time = absl::Hours(1);
    client_ = *NewShmCarrier(dialling);
    server_ = *NewShmCarrier(options);
    auto address = server_->Listen(at, [this](std::shared_ptr<Link> link) {
      auto recorder = std::make_shared<Recorder>();
      if (echo_) {
        recorder->SetOnMessage(
            [](Link& link, const Message& message) { EXPECT_TRUE(link.Send(message).ok()); });
        recorder->CountOnly();
      }
      recorder->SetLink(std::move(link));
      MutexLock lock(mutex_);
      accepted_.push_back(recorder);
      changed_.NotifyAll();
      return recorder;
    });
    ASSERT_TRUE(address.ok()) << address.status();
    address_ = *address;
  }
  std::shared_ptr<Recorder> Connect() {
    recorders_.push_back(std::make_shared<Recorder>());
    auto link = ConnectAndWait(*client_, address_, recorders_.back());
    EXPECT_TRUE(link.ok()) << link.status();
    return recorders_.back();
  }
  std::shared_ptr<Recorder> Accepted(size_t index) {
    MutexLock lock(mutex_);
    while (accepted_.size() <= index && changed_.WaitFor(mutex_, kPatience)) {
    }
    return accepted_.at(index);
  }

  bool echo_ = false;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<Recorder>> accepted_;
  std::vector<std::shared_ptr<Recorder>> recorders_;
  std::shared_ptr<Carrier> client_;
  std::shared_ptr<Carrier> server_;
  std::string address_;
};

TEST_F(ShmCarrierTest, ASocketMayHaveAFileWhichGoesWithTheCarrier) {
  char folder[] = "/tmp/shm_carrier_test.XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = absl::StrCat(folder, "/socket");
  Start({}, absl::StrCat("unix:", path));
  EXPECT_EQ(address_, absl::StrCat("unix:", path));
  const auto recorder = Connect();
  EXPECT_EQ(recorder->WaitForLink()->Description(), absl::StrCat("shm unix:", path));
  server_->Shutdown();
  server_.reset();
  struct stat status = {};
  EXPECT_NE(stat(path.c_str(), &status), 0);
  EXPECT_EQ(rmdir(folder), 0);
}

TEST_F(ShmCarrierTest, FilesThatAreNoSocketOfThisCarrierStay) {
  char folder[] = "/tmp/shm_carrier_test.XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = absl::StrCat(folder, "/model.bin");
  const auto exists = [&path] {
    struct stat status = {};
    return stat(path.c_str(), &status) == 0;
  };
  const auto write = [&path] { std::ofstream(path) << "weights"; };
  const auto nobody = [](std::shared_ptr<Link>) { return nullptr; };
  write();
  auto carrier = *NewShmCarrier({});
  const absl::Status status = carrier->Listen(absl::StrCat("unix:", path), nobody).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(exists()) << "it was there before";

  EXPECT_EQ(unlink(path.c_str()), 0);
  ASSERT_TRUE(carrier->Listen(absl::StrCat("unix:", path), nobody).ok());
  EXPECT_EQ(unlink(path.c_str()), 0);
  // The file gets an inode of its own while the socket keeps its own.
  write();
  carrier.reset();
  EXPECT_TRUE(exists()) << "it took the socket's place";
  EXPECT_EQ(unlink(path.c_str()), 0);
  EXPECT_EQ(rmdir(folder), 0);
}

TEST_F(ShmCarrierTest, TheFileOfADeadProcessIsReplaced) {
  char folder[] = "/tmp/shm_carrier_test.XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = absl::StrCat(folder, "/socket");
  // A socket that is closed leaves its file behind.
  ASSERT_TRUE(ListenUnix(absl::StrCat("unix:", path)).ok());
  struct stat status = {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  Start({}, absl::StrCat("unix:", path));
  Connect();
  TearDown();
  server_.reset();
  EXPECT_EQ(rmdir(folder), 0);
}

TEST_F(ShmCarrierTest, OnlyTheOwnUserIsTrusted) {
  ShmCarrierOptions options;
  options.memory = MemoryBudget::Create(0);
  const ShmCore core(options);
  EXPECT_TRUE(core.Trusts(geteuid()));
  EXPECT_FALSE(core.Trusts(geteuid() + 1));
  EXPECT_FALSE(core.Trusts(65534)) << "it stands for unknown ones";
}

TEST_F(ShmCarrierTest, AddressesOfOtherFormsAreRefused) {
  Start();
  auto other = *NewShmCarrier({});
  const auto nobody = [](std::shared_ptr<Link>) { return nullptr; };
  for (const std::string address : {"127.0.0.1:0", "unix:", "unix:relative", "@name"}) {
    EXPECT_EQ(other->Listen(address, nobody).status().code(), absl::StatusCode::kInvalidArgument);
    auto recorder = std::make_shared<Recorder>();
    EXPECT_EQ(ConnectAndWait(*client_, address, recorder).status().code(),
              absl::StatusCode::kUnavailable);
  }
}

TEST_F(ShmCarrierTest, OptionsOutOfRangeAreRefused) {
  ShmCarrierOptions options;
  options.poll_threads = 0;
  EXPECT_EQ(NewShmCarrier(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.poll_threads = 1;
  options.rings.bulk_bytes = 5000;
  EXPECT_EQ(NewShmCarrier(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ShmCarrierTest, ManyLinksWorkSideBySide) {
  constexpr int kLinks = 150;
  echo_ = true;
  ShmCarrierOptions options;
  options.poll_threads = 2;
  options.rings = {8192, 8192, 1};
  Start(options);
  for (int i = 0; i < kLinks; ++i) {
    const auto recorder = Connect();
    for (const size_t bytes : {size_t{10}, size_t{200'000}}) {
      ASSERT_TRUE(recorder->WaitForLink()->Send(MessageOf("", bytes)).ok());
    }
  }
  for (const auto& recorder : recorders_) EXPECT_TRUE(recorder->WaitForMessages(2));
  for (int i = 0; i < kLinks; i += 2) recorders_[i]->WaitForLink()->Close();
  for (int i = 0; i < kLinks; i += 2) EXPECT_TRUE(Accepted(i)->WaitForClosed());
  for (int i = 1; i < kLinks; i += 2) EXPECT_TRUE(Accepted(i)->closed().empty());
}

TEST_F(ShmCarrierTest, PingPongGoesOnWithAndWithoutSpinning) {
  for (const bool spin : {true, false}) {
    ShmCarrierOptions options;
    options.spin = spin;
    echo_ = true;
    Start(options);
    const auto recorder = Connect();
    recorder->CountOnly();
    for (int i = 1; i <= 2000; ++i) {
      ASSERT_TRUE(recorder->WaitForLink()->Send(MessageOf("", 10)).ok());
      ASSERT_TRUE(recorder->WaitForMessages(i)) << "spin " << spin << " round " << i;
    }
    TearDown();
  }
}

TEST_F(ShmCarrierTest, NoWakeUpIsLost) {
  // After pauses of all lengths, messages meet threads that look, that are about to sleep, and that
  // sleep. There are no probes that could wake a thread by chance.
  ShmCarrierOptions options;
  options.keepalive_time = absl::Hours(1);
  options.rings = {4096, 65536, 2};
  echo_ = true;
  Start(options);
  client_ = *NewShmCarrier(options);
  const auto recorder = Connect();
  recorder->CountOnly();
  for (int i = 1; i <= 1500; ++i) {
    const size_t bytes = i % 50 == 0 ? 300'000 : 10;
    ASSERT_TRUE(recorder->WaitForLink()->Send(MessageOf("", bytes)).ok());
    ASSERT_TRUE(recorder->WaitForMessages(i)) << "round " << i;
    const absl::Time until = absl::Now() + absl::Microseconds(i * 37 % 150);
    while (absl::Now() < until) {
    }
  }
}

TEST_F(ShmCarrierTest, AThreadThatHelpsWhileItWaitsMissesNothing) {
  // The server answers on its own thread. The client's thread waits by helping, and the message
  // arrives on that thread or on the carrier's. No thread looks at rings while others wait for the
  // processor.
  echo_ = true;
  Start();
  const auto recorder = Connect();
  recorder->CountOnly();
  std::atomic<size_t> count{0};
  recorder->SetOnMessage([&](Link&, const Message&) { ++count; });
  const std::shared_ptr<Link> link = recorder->WaitForLink();
  for (size_t i = 1; i <= 2000; ++i) {
    ASSERT_TRUE(link->Send(MessageOf("", 10)).ok());
    link->HelpUntil([&] { return count.load() >= i; });
    ASSERT_TRUE(recorder->WaitForMessages(i)) << "round " << i;
  }
  link->HelpUntil([] { return true; });
  link->Close();
  link->HelpUntil([] { return false; });
  EXPECT_TRUE(recorder->WaitForClosed());
}

TEST_F(ShmCarrierTest, ManyThreadsMayHelpAtOnce) {
  echo_ = true;
  Start();
  const auto recorder = Connect();
  recorder->CountOnly();
  const std::shared_ptr<Link> link = recorder->WaitForLink();
  constexpr int kThreads = 3;
  constexpr int kEach = 300;
  std::atomic<int> answered{0};
  recorder->SetOnMessage([&](Link&, const Message&) { ++answered; });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        const int before = answered.load();
        ASSERT_TRUE(link->Send(MessageOf("", 100)).ok());
        link->HelpUntil([&] { return answered.load() > before; });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(recorder->WaitForMessages(kThreads * kEach));
}

TEST_F(ShmCarrierTest, RingsAreChargedToTheBudgetOfWhoMakesThem) {
  ShmCarrierOptions options;
  options.memory = MemoryBudget::Create(0);
  Start(options);
  const auto recorder = Connect();
  Accepted(0);
  EXPECT_EQ(options.memory->transit()->used_bytes(), RingSizes().SegmentBytes());
  recorder->WaitForLink()->Close();
  EXPECT_TRUE(Accepted(0)->WaitForClosed());
  server_->Shutdown();
  recorder->SetLink(nullptr);
  Accepted(0)->SetLink(nullptr);
  EXPECT_EQ(options.memory->transit()->used_bytes(), 0u);
}

TEST_F(ShmCarrierTest, APeerIsToldThatThereIsNoMemoryForRings) {
  ShmCarrierOptions options;
  options.memory = MemoryBudget::Create(kMiB);
  Start(options);
  auto recorder = std::make_shared<Recorder>();
  const absl::Status status = ConnectAndWait(*client_, address_, recorder).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(), "the peer declines")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "budget")) << status;
}

TEST_F(ShmCarrierTest, AMessageWaitsForRoomWhileSmallOnesPass) {
  ShmCarrierOptions options;
  options.memory = MemoryBudget::Create(24 * kMiB);
  options.room_patience = absl::Hours(1);
  Start(options);
  const auto sender = Connect();
  const auto heard = Accepted(0);
  MemoryAccount& transit = *options.memory->transit();
  MemoryCharge in_use = *transit.Charge(transit.most_bytes() - transit.used_bytes() - kMiB);
  ASSERT_TRUE(sender->WaitForLink()->Send(MessageOf("large", 3 * kMiB)).ok());
  ASSERT_TRUE(sender->WaitForLink()->Send(MessageOf("small", 1000)).ok());
  ASSERT_TRUE(heard->WaitForMessages(1));
  EXPECT_EQ(heard->TakeMessages().at(0).header, "small");
  in_use.reset();
  ASSERT_TRUE(heard->WaitForMessages(2));
  EXPECT_EQ(heard->TakeMessages().at(0).buffers.at(0).view(), std::string(3 * kMiB, 'x'));
}

TEST_F(ShmCarrierTest, AMessageThatWaitedTooLongIsRefusedAndTheLinkLivesOn) {
  ShmCarrierOptions options;
  options.memory = MemoryBudget::Create(24 * kMiB);
  options.room_patience = absl::Milliseconds(20);
  Start(options);
  const auto sender = Connect();
  const auto heard = Accepted(0);
  MemoryAccount& transit = *options.memory->transit();
  MemoryCharge in_use = *transit.Charge(transit.most_bytes() - transit.used_bytes() - kMiB);
  ASSERT_TRUE(sender->WaitForLink()->Send(MessageOf("large", 3 * kMiB)).ok());
  ASSERT_TRUE(heard->WaitForRefused(1));
  EXPECT_EQ(heard->refused().at(0).first, "large");
  EXPECT_EQ(heard->refused().at(0).second.code(), absl::StatusCode::kResourceExhausted);
  in_use.reset();
  ASSERT_TRUE(sender->WaitForLink()->Send(MessageOf("again", 3 * kMiB)).ok());
  ASSERT_TRUE(heard->WaitForMessages(1));
  EXPECT_EQ(heard->TakeMessages().at(0).header, "again");
}

}  // namespace
}  // namespace psd::carrier
