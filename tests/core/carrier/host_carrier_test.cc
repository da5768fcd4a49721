// The carrier that uses shared memory within a host and gRPC between hosts.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/log.h"
#include "core/base/memory_budget.h"
#include "core/carrier/faulty/tcp_route.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/carrier/shm/host_carrier.h"
#include "core/carrier/shm/host_factory.h"
#include "core/carrier/shm/unix_socket.h"
#include "tests/core/carrier/carrier_suite.h"

namespace psd::carrier {
namespace {

class HostWorld : public CarrierWorld {
 public:
  ~HostWorld() override {
    if (silent_ >= 0) close(silent_);
  }
  std::shared_ptr<Carrier> NewCarrier(const Limits& limits) override {
    GrpcCarrierOptions options;
    options.limits = limits;
    options.keepalive_time = absl::Seconds(20);  // so that a loaded machine is not taken for dead
    options.keepalive_timeout = absl::Seconds(20);
    return *NewHostCarrier(options, SharedMemoryUse{}, NewNullLogger());
  }
  std::string AnyAddress() override { return "127.0.0.1:0"; }
  std::string DeadAddress() override {
    int port = 0;
    close(ListenOnLoopback(&port));
    return absl::StrCat("127.0.0.1:", port);
  }
  std::string SilentAddress() override {
    int port = 0;
    silent_ = ListenOnLoopback(&port);  // the system accepts connections, and nobody answers
    return absl::StrCat("127.0.0.1:", port);
  }
  std::string RouteTo(const std::string& address) override {
    route_ = std::make_unique<TcpRoute>(address);
    return route_->address();
  }
  void CutRoute() override { route_->Cut(); }

 private:
  int silent_ = -1;
  std::unique_ptr<TcpRoute> route_;
};

INSTANTIATE_TEST_SUITE_P(Host, CarrierSuite, testing::Values(MakeWorld([] {
                           return std::unique_ptr<CarrierWorld>(new HostWorld);
                         })));

TEST(HostCarrierTest, ASocketIsNamedByTheAddressListenedOn) {
  EXPECT_EQ(*SocketOf("127.0.0.1:7071"), "unix:@psd/127.0.0.1:7071");
  EXPECT_EQ(*SocketOf("localhost:7071"), "unix:@psd/127.0.0.1:7071");
  EXPECT_EQ(*SocketOf("0.0.0.0:9"), "unix:@psd/0.0.0.0:9");
  EXPECT_EQ(*SocketOf("[::]:9"), "unix:@psd/0.0.0.0:9");
  EXPECT_EQ(*SocketOf("[::1]:9"), "unix:@psd/[::1]:9");
  EXPECT_FALSE(SocketOf("nonsense").ok());
}

TEST(HostCarrierTest, OnlyAddressesOfThisHostHaveSockets) {
  using Sockets = std::vector<std::string>;
  const Sockets loopback = {"unix:@psd/127.0.0.1:7071", "unix:@psd/0.0.0.0:7071"};
  EXPECT_EQ(SocketsFor("127.0.0.1:7071"), loopback);
  EXPECT_EQ(SocketsFor("localhost:7071"), loopback);
  EXPECT_EQ(SocketsFor("[::1]:9"), (Sockets{"unix:@psd/[::1]:9", "unix:@psd/0.0.0.0:9"}));
  EXPECT_EQ(SocketsFor("192.0.2.1:7071"), Sockets()) << "an address for documents, on no host";
  EXPECT_EQ(SocketsFor("owner0.example:7071"), Sockets());
  EXPECT_EQ(SocketsFor("nonsense"), Sockets());
}

class HostCarrierLinkTest : public testing::Test {
 protected:
  ~HostCarrierLinkTest() override {
    client_->Shutdown();
    server_->Shutdown();
    near_->SetLink(nullptr);
    far_->SetLink(nullptr);
  }
  void Listen(std::shared_ptr<Carrier> server, const std::string& address = "127.0.0.1:0") {
    server_ = std::move(server);
    auto bound = server_->Listen(address, [this](std::shared_ptr<Link> link) {
      far_->SetLink(std::move(link));
      return far_;
    });
    ASSERT_TRUE(bound.ok()) << bound.status();
    address_ = *bound;
  }
  std::shared_ptr<Carrier> NewCarrier(bool shared_memory = true) const {
    return *NewHostCarrier(GrpcCarrierOptions(), SharedMemoryUse{shared_memory, "", ""}, logger_);
  }
  // Opens a link that works, and returns its description.
  std::string Open() {
    auto link = ConnectAndWait(*client_, address_, near_);
    EXPECT_TRUE(link.ok()) << link.status();
    if (!link.ok()) return "";
    Message message;
    message.header = "works";
    EXPECT_TRUE((*link)->Send(message).ok());
    EXPECT_TRUE(far_->WaitForMessages(1));
    why_ = (*link)->WhyNotShared();
    return (*link)->Description();
  }
  std::string log() const { return log_.str(); }

  std::ostringstream log_;
  const std::shared_ptr<Logger> logger_ = NewStreamLogger(log_, LogLevel::kInfo);
  const std::shared_ptr<Recorder> near_ = std::make_shared<Recorder>();
  const std::shared_ptr<Recorder> far_ = std::make_shared<Recorder>();
  const std::shared_ptr<Carrier> client_ = NewCarrier();
  std::shared_ptr<Carrier> server_;
  std::string address_;
  std::string why_;  // the latest link does not use shared memory
};

TEST_F(HostCarrierLinkTest, WorkersOfOneHostUseSharedMemory) {
  Listen(NewCarrier());
  EXPECT_EQ(Open(), absl::StrCat("shm unix:@psd/", address_));
  EXPECT_EQ(log(), "");
  EXPECT_EQ(why_, "");
  EXPECT_EQ(far_->WaitForLink()->WhyNotShared(), "");
}

TEST_F(HostCarrierLinkTest, AWorkerThatListensEverywhereIsFoundToo) {
  Listen(NewCarrier(), "0.0.0.0:0");
  const std::string port = address_.substr(address_.rfind(':'));
  address_ = absl::StrCat("127.0.0.1", port);
  EXPECT_EQ(Open(), absl::StrCat("shm unix:@psd/0.0.0.0", port));
}

TEST_F(HostCarrierLinkTest, AWorkerWithoutSharedMemoryIsReachedOverTheNetwork) {
  Listen(*NewGrpcCarrier({}));
  EXPECT_TRUE(absl::StartsWith(Open(), "grpc "));
  EXPECT_EQ(log(), "") << "it is in order";
  EXPECT_EQ(why_,
            absl::StrCat("no worker of this network namespace offers shared memory at ", address_));
}

TEST_F(HostCarrierLinkTest, AWorkerThatTurnsSharedMemoryOffSaysSo) {
  Listen(NewCarrier(/*shared_memory=*/false));
  EXPECT_TRUE(absl::StartsWith(Open(), "grpc "));
  EXPECT_EQ(log(), "") << "it is in order";
  EXPECT_EQ(far_->WaitForLink()->WhyNotShared(), "shared memory is off at this worker");
}

TEST_F(HostCarrierLinkTest, ADiallerThatTurnsSharedMemoryOffSaysSo) {
  Listen(NewCarrier());
  const std::shared_ptr<Carrier> dialler = NewCarrier(/*shared_memory=*/false);
  auto link = ConnectAndWait(*dialler, address_, near_);
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_EQ((*link)->WhyNotShared(), "shared memory is off at this worker");
  EXPECT_EQ(far_->WaitForLink()->WhyNotShared(), "the peer dialled over the network");
  dialler->Shutdown();
}

TEST_F(HostCarrierLinkTest, AnIntroductionThatFailsIsLoggedAndTheNetworkUsed) {
  Listen(*NewGrpcCarrier({}));
  auto impostor = ListenUnix(*SocketOf(address_));
  ASSERT_TRUE(impostor.ok()) << impostor.status();
  EXPECT_TRUE(absl::StartsWith(Open(), "grpc "));
  EXPECT_TRUE(absl::StrContains(log(), "shared_memory_unused")) << log();
  EXPECT_TRUE(absl::StrContains(log(), "no answer from unix:@psd/")) << log();
  EXPECT_TRUE(absl::StrContains(why_, "no answer from unix:@psd/")) << why_;
}

TEST_F(HostCarrierLinkTest, RingsTakeASixteenthOfTheBudgetAndFurtherLinksUseTheNetwork) {
  GrpcCarrierOptions options;
  options.memory = MemoryBudget::Create(size_t{48} << 20);
  Listen(*NewHostCarrier(options, SharedMemoryUse{}, logger_));
  EXPECT_TRUE(absl::StartsWith(Open(), "shm ")) << why_;
  EXPECT_TRUE(absl::StartsWith(Open(), "shm ")) << why_;
  EXPECT_GT(options.memory->transit()->used_bytes(), size_t{2} << 20) << "it is charged";
  EXPECT_TRUE(absl::StartsWith(Open(), "grpc "));
  EXPECT_TRUE(absl::StrContains(why_, "a sixteenth of its memory budget")) << why_;
  EXPECT_TRUE(absl::StrContains(log(), "a sixteenth of its memory budget")) << log();
}

TEST_F(HostCarrierLinkTest, ADiallerWithASmallBudgetUsesTheNetwork) {
  Listen(NewCarrier());
  GrpcCarrierOptions options;
  options.memory = MemoryBudget::Create(size_t{16} << 20);
  const auto dialler = *NewHostCarrier(options, SharedMemoryUse{}, logger_);
  auto link = ConnectAndWait(*dialler, address_, near_);
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_TRUE(absl::StrContains((*link)->WhyNotShared(), "a sixteenth of its memory budget"));
  dialler->Shutdown();
}

TEST_F(HostCarrierLinkTest, ACarrierThatEndsWhileItDialsAnswersFirst) {
  Listen(*NewGrpcCarrier({}));
  auto impostor = ListenUnix(*SocketOf(address_));
  ASSERT_TRUE(impostor.ok()) << impostor.status();
  std::shared_ptr<Carrier> dialler = NewCarrier();
  std::atomic<bool> answered{false};
  dialler->Connect(address_, absl::Hours(1), near_,
                   [&](const absl::StatusOr<std::shared_ptr<Link>>& link) {
                     EXPECT_FALSE(link.ok());
                     answered = true;
                   });
  dialler.reset();
  EXPECT_TRUE(answered);
}

TEST_F(HostCarrierLinkTest, AWorkerWhoseSocketIsTakenListensOnTheNetwork) {
  int port = 0;
  close(ListenOnLoopback(&port));
  const std::string address = absl::StrCat("127.0.0.1:", port);
  auto taken = ListenUnix(*SocketOf(address));
  ASSERT_TRUE(taken.ok()) << taken.status();
  Listen(NewCarrier(), address);
  EXPECT_TRUE(absl::StrContains(log(), "in use")) << log();
  taken->fd = UniqueFd();
  EXPECT_TRUE(absl::StartsWith(Open(), "grpc "));
}

}  // namespace
}  // namespace psd::carrier
