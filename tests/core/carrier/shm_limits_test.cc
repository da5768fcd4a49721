// Links over shared memory have limits for the memory and the descriptors that they take. At a
// limit, the reason is named and the link uses the network.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/log.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/carrier/shm/host_factory.h"
#include "core/carrier/shm/ring_quota.h"
#include "core/carrier/shm/unix_socket.h"
#include "tests/core/base/refused_calls.h"
#include "tests/core/carrier/recorder.h"
#include "tests/core/carrier/shm_listening_test.h"
#include "tests/core/carrier/shm_raw_peer.h"

namespace psd::carrier {
namespace {

void SetSoftLimit(__rlimit_resource resource, rlim_t limit) {
  rlimit both = {};
  PSD_CHECK(getrlimit(resource, &both) == 0, "a limit can be read");
  both.rlim_cur = limit;
  PSD_CHECK(setrlimit(resource, &both) == 0, "a soft limit can be lowered");
}

// Takes descriptors until the next one is `next`, or until there is none if `next` is the limit.
std::vector<UniqueFd> Fill(int next) {
  std::vector<UniqueFd> taken;
  for (int last = 0; last >= 0 && last < next - 1;) {
    taken.emplace_back(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
    last = taken.back().get();
  }
  return taken;
}

// Keeps the reason for which shared memory is not used. Then it frees descriptors, so that there
// are some for the network.
class FreeingLogger : public Logger {
 public:
  bool Enabled(LogLevel) const override { return true; }
  void Log(LogLevel, absl::string_view event, absl::string_view message,
           std::initializer_list<LogField>) override {
    if (event != "shared_memory_unused") return;
    MutexLock lock(mutex_);
    absl::StrAppend(&said_, message, "\n");
    taken_.clear();
  }
  void Keep(std::vector<UniqueFd> taken) {
    MutexLock lock(mutex_);
    taken_ = std::move(taken);
  }
  std::string said() {
    MutexLock lock(mutex_);
    return said_;
  }

 private:
  Mutex mutex_;
  std::string said_ PSD_GUARDED_BY(mutex_);
  std::vector<UniqueFd> taken_ PSD_GUARDED_BY(mutex_);
};

// Dials a worker under a limit, and says why shared memory is not used. Ends the process, with 0 if
// the network is used, messages arrive, and the log has the same reason.
void DialUnder(const std::function<std::vector<UniqueFd>()>& limit) {
  const auto logger = std::make_shared<FreeingLogger>();
  const auto dialler = *NewHostCarrier(GrpcCarrierOptions(), SharedMemoryUse{}, logger);
  const auto dialled = *NewHostCarrier(GrpcCarrierOptions(), SharedMemoryUse{}, logger);
  const auto far = std::make_shared<Recorder>();
  const std::string address =
      *dialled->Listen("127.0.0.1:0", [&far](std::shared_ptr<Link>) { return far; });
  logger->Keep(limit());
  const auto near = std::make_shared<Recorder>();
  const auto link = ConnectAndWait(*dialler, address, near);
  if (!link.ok()) {
    std::cerr << link.status() << std::endl;
    _exit(1);
  }
  const std::string why = (*link)->WhyNotShared();
  std::cerr << why << std::endl;
  if (!absl::StartsWith((*link)->Description(), "grpc ")) _exit(2);
  Message message;
  message.header = "works";
  if (!(*link)->Send(message).ok() || !far->WaitForMessages(1)) _exit(3);
  _exit(!why.empty() && absl::StrContains(logger->said(), why) ? 0 : 4);
}

class ShmLimitsDeathTest : public testing::Test {
 protected:
  ShmLimitsDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(ShmLimitsDeathTest, AProcessThatMayHaveNoLargeFilesUsesTheNetwork) {
  EXPECT_EXIT(DialUnder([] {
                SetSoftLimit(RLIMIT_FSIZE, 1'000'000);
                return std::vector<UniqueFd>();
              }),
              testing::ExitedWithCode(0), "1000000 .RLIMIT_FSIZE.*ulimit -f");
}

TEST_F(ShmLimitsDeathTest, AContainerWhoseProfileAllowsNoSharedMemoryUsesTheNetwork) {
  EXPECT_EXIT(DialUnder([] {
                const unsigned int flags =
                    MFD_CLOEXEC | MFD_ALLOW_SEALING | 8 /* MFD_NOEXEC_SEAL */;
                PSD_CHECK(Refuse({SYS_memfd_create, 1, flags, EPERM}), "calls can be refused");
                return std::vector<UniqueFd>();
              }),
              testing::ExitedWithCode(0), "memfd_create.*seccomp profile.*allow memfd_create");
}

#ifndef __SANITIZE_ADDRESS__  // UBSan comes with it and examines objects through a pipe

TEST_F(ShmLimitsDeathTest, AProcessWithoutDescriptorsSaysSoAndUsesTheNetwork) {
  EXPECT_EXIT(DialUnder([] {
                SetSoftLimit(RLIMIT_NOFILE, 256);
                return Fill(256);
              }),
              testing::ExitedWithCode(0), "a socket to dial unix:.*256 .RLIMIT_NOFILE.*ulimit -n");
}

TEST_F(ShmLimitsDeathTest, AProcessWithoutADescriptorForASegmentSaysSoAndUsesTheNetwork) {
  EXPECT_EXIT(DialUnder([] {
                SetSoftLimit(RLIMIT_NOFILE, 256);
                std::vector<UniqueFd> taken = Fill(256);
                taken.pop_back();  // for the socket
                return taken;
              }),
              testing::ExitedWithCode(0), "memfd_create.*256 .RLIMIT_NOFILE.*ulimit -n");
}

#endif

TEST_F(ShmLimitsDeathTest, AWorkerKeepsItsLastDescriptorsAndThePeerHearsWhy) {
  // The link would need a descriptor of the last eighth.
  EXPECT_EXIT(DialUnder([] {
                SetSoftLimit(RLIMIT_NOFILE, 256);
                return Fill(230);
              }),
              testing::ExitedWithCode(0),
              "the peer declines: 2[0-9][0-9] of 256 file descriptors are in use");
}

class ShmLimitsTest : public ShmListeningTest {};

TEST_F(ShmLimitsTest, ADescriptorThatFindsNoPlaceIsNotThePeersFault) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd near(ends[0]), far(ends[1]);
  ASSERT_EQ(SendPacket(far.get(), PacketKind::kHello, "hello", STDERR_FILENO), 0);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  SetSoftLimit(RLIMIT_NOFILE, 256);
  std::vector<UniqueFd> taken = Fill(256);
  const absl::Status status = ReceivePacket(near.get()).status();
  taken.clear();
  SetSoftLimit(RLIMIT_NOFILE, before.rlim_cur);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "256 (RLIMIT_NOFILE)")) << status;
}

TEST_F(ShmLimitsTest, OfTooManyThatDoNotIntroduceThemselvesTheOldestEnd) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  SetSoftLimit(RLIMIT_NOFILE, 128);  // a quarter of the unreserved descriptors is 28
  Listen();
  std::deque<ShmRawPeer> peers;
  for (int i = 0; i < 32; ++i)
    peers.emplace_back(address_, RingSizes{4096, 4096, 1}).own().CloseFd();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(peers[i].AwaitEnd(), "more than 28 connections have not introduced themselves yet");
  }
  ExpectServes();
  // The honest peer was the newest, so all other peers but one are still there.
  SendPacket(peers[31].fd(), PacketKind::kProbe);
  const auto packet = peers[31].AwaitPacket();
  ASSERT_TRUE(packet.ok()) << packet.status();
  EXPECT_EQ(packet->kind, PacketKind::kAlive);
  SetSoftLimit(RLIMIT_NOFILE, before.rlim_cur);
}

constexpr RingSizes kSmallRings{4096, 4096, 1};

TEST_F(ShmLimitsTest, OneProcessLeavesTheOthersRoomForRings) {
  constexpr int kPlaces = 10;
  options_.rings = kSmallRings;
  options_.memory = MemoryBudget::Create(16 * kPlaces * kSmallRings.SegmentBytes());
  Listen();
  std::deque<ShmRawPeer> peers;
  for (int i = 0; i < 6; ++i) peers.emplace_back(address_, kSmallRings).Open();
  {
    ShmRawPeer greedy(address_, kSmallRings);
    greedy.Introduce();
    const std::string why = greedy.AwaitEnd();
    EXPECT_TRUE(absl::StrContains(why, absl::StrCat("process ", getpid(), " of user "))) << why;
    EXPECT_TRUE(absl::StrContains(why, "left to other processes")) << why;
  }
  // When a link has ended, there is room for another one.
  peers.pop_front();
  EXPECT_TRUE(Accepted(0)->WaitForClosed());
  Accepted(0)->SetLink(nullptr);
  const absl::Time until = absl::Now() + kPatience;
  bool opened = false;
  while (!opened && absl::Now() < until) {
    peers.emplace_back(address_, kSmallRings).Introduce();
    const auto answer = peers.back().AwaitPacket();
    opened = answer.ok() && answer->kind == PacketKind::kHello;
  }
  EXPECT_TRUE(opened);
}

TEST(RingQuotaTest, OthersFindRoomWhereOneProcessFindsNone) {
  constexpr size_t kLink = 1000;
  const auto budget = MemoryBudget::Create(16 * 10 * kLink);
  const auto quota = std::make_shared<RingQuota>(*budget, kLink);
  std::vector<MemoryCharge> charges;
  const auto take = [&](absl::StatusOr<MemoryCharge> charge) {
    if (charge.ok()) charges.push_back(*std::move(charge));
    return charge.ok();
  };
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(take(quota->ChargePeer("process 1"))) << i;
  EXPECT_FALSE(take(quota->ChargePeer("process 1")));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(take(quota->ChargePeer("process 2"))) << i;
  EXPECT_FALSE(take(quota->ChargePeer("process 2")));
  // The worker itself may take the rest, because no peer chooses whom it dials.
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(take(quota->ChargeOwn())) << i;
  EXPECT_TRUE(absl::StrContains(quota->ChargeOwn().status().message(), "take 10000 of at most"));
  charges.clear();
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(take(quota->ChargePeer("process 1"))) << i;
}

TEST(RingQuotaTest, ABudgetWithoutLimitHasRoomForAll) {
  const auto budget = MemoryBudget::Create(0);
  const auto quota = std::make_shared<RingQuota>(*budget, 1000);
  std::vector<MemoryCharge> charges;
  for (int i = 0; i < 1000; ++i) charges.push_back(*quota->ChargePeer("process 1"));
  EXPECT_EQ(budget->limit_bytes(), 0u);
}

}  // namespace
}  // namespace psd::carrier
