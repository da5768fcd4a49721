// The registrar as workers use it, over gRPC on the loopback interface.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/log.h"
#include "core/rpc/registrar/registrar_client.h"
#include "core/runtime/runtime.h"
#include "server/daemon/config.h"
#include "server/daemon/server.h"

namespace psd::server {
namespace {

using rpc::JoinOptions;
using rpc::Membership;
using rpc::RegistrarClient;
using rpc::WorkerRole;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

rpc::CallOptions Call() {
  rpc::CallOptions options;
  options.timeout = absl::Seconds(30);
  return options;
}

std::unique_ptr<Server> StartServer(const std::string& name, const std::string& listen,
                                    const std::string& registrar_address = "",
                                    std::vector<std::string> owners = {}) {
  DaemonConfig config;
  config.name = name;
  config.listen = listen;
  config.lease = absl::Seconds(30);
  config.owners = std::move(owners);
  if (!registrar_address.empty()) {
    config.registrar_name = "owner0";
    config.registrar_address = registrar_address;
  }
  auto server = Server::Create(config, {}, NewNullLogger());
  EXPECT_TRUE(server.ok()) << server.status();
  auto address = (*server)->Start();
  EXPECT_TRUE(address.ok()) << address.status();
  return *std::move(server);
}

// The part of a trainer that talks to the registrar.
class Trainer {
 public:
  Trainer(const std::string& name, const std::string& registrar_address) {
    worker::RuntimeOptions options;
    options.name = name;
    options.session.lease = absl::Seconds(30);
    auto runtime = worker::Runtime::Create(std::move(options));
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    client_ = std::make_unique<RegistrarClient>(runtime_->agent(), runtime_->timers(),
                                                runtime_->logger());
    EXPECT_TRUE(runtime_->Start().ok());
    runtime_->agent().AddPeer("owner0", registrar_address);
  }
  ~Trainer() { Leave(); }

  absl::StatusOr<Membership> Join(uint32_t group_size = 0) {
    return JoinAs(WorkerRole::kTrainer, "", group_size);
  }
  absl::StatusOr<Membership> JoinAs(WorkerRole role, const std::string& address,
                                    uint32_t group_size = 0) {
    JoinOptions join;
    join.registrar = "owner0";
    join.role = role;
    join.address = address;
    join.group_size = group_size;
    return client_->Join(join, Call()).Wait();
  }
  std::vector<std::string> AbsentOwners() {
    auto world = rpc::AskWorld(runtime_->agent(), "owner0", Call()).Wait();
    EXPECT_TRUE(world.ok()) << world.status();
    return world.ok() ? world->absent_owners : std::vector<std::string>{};
  }
  Future<Unit> Barrier(const std::vector<std::string>& members) {
    return client_->Barrier("b", members, Call());
  }
  std::vector<std::string> World() {
    auto world = rpc::AskWorld(runtime_->agent(), "owner0", Call()).Wait();
    std::vector<std::string> names;
    if (!world.ok()) return names;
    for (const auto& member : world->members) names.push_back(member.name);
    return names;
  }
  void Leave() {
    client_->Stop();
    runtime_->Shutdown(absl::Seconds(1));
  }
  RegistrarClient& client() { return *client_; }

 private:
  std::unique_ptr<worker::Runtime> runtime_;
  std::unique_ptr<RegistrarClient> client_;
};

// Waits until `condition` holds, for events that have no notification.
template <typename Condition>
bool Eventually(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

TEST(RegistrarService, RPC_08_RPC_53_RanksWorldAndBarriers) {
  auto server = StartServer("owner0", "127.0.0.1:0");
  const std::string address = server->runtime().address();
  Trainer a("a", address), b("b", address);
  auto first = a.Join();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->rank, 1u) << "the registrar itself has rank 0";
  ASSERT_TRUE(b.Join().ok());
  EXPECT_EQ(b.client().membership().rank, 2u);
  EXPECT_THAT(a.World(), ElementsAre("owner0", "a", "b"));

  Future<Unit> waits = a.Barrier({"a", "b"});
  EXPECT_TRUE(b.Barrier({"b", "a"}).Wait().ok());
  EXPECT_TRUE(waits.Wait().ok());
}

TEST(RegistrarService, RPC_54_RPC_63_ABarrierFailsWhenAMemberLeaves) {
  auto server = StartServer("owner0", "127.0.0.1:0");
  const std::string address = server->runtime().address();
  Trainer a("a", address), b("b", address);
  ASSERT_TRUE(a.Join(2).ok());
  ASSERT_TRUE(b.Join(2).ok());
  Trainer c("c", address);
  EXPECT_EQ(c.Join(3).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(c.Join(2).status().code(), absl::StatusCode::kResourceExhausted);
  Future<Unit> waits = a.Barrier({});
  a.World();  // small messages arrive in order, so `a` waits before `b` leaves
  b.Leave();
  const absl::Status failed = waits.Wait().status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("b (rank 2) left"));
}

TEST(RegistrarService, ABarrierBeforeJoiningIsRefused) {
  auto server = StartServer("owner0", "127.0.0.1:0");
  Trainer a("a", server->runtime().address());
  EXPECT_EQ(a.Barrier({}).Wait().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(RegistrarService, OwnersAreThoseThatTheConfigurationNames) {
  auto server = StartServer("owner0", "127.0.0.1:0", "", {"owner0", "owner1"});
  const std::string address = server->runtime().address();
  Trainer stranger("stranger", address);
  const absl::Status refused = stranger.JoinAs(WorkerRole::kOwner, "10.0.0.9:1").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("stranger is not among the owners"));
  EXPECT_TRUE(stranger.Join().ok()) << "as a trainer it may";
  EXPECT_TRUE(Eventually([&] { return stranger.World().size() == 2; }));
  EXPECT_THAT(stranger.AbsentOwners(), ElementsAre("owner1"));

  auto other = StartServer("owner1", "127.0.0.1:0", address, {"owner0", "owner1"});
  EXPECT_TRUE(Eventually([&] { return stranger.AbsentOwners().empty(); }));
}

TEST(RegistrarService, AnAddressThatNobodyCanDialIsRefused) {
  auto server = StartServer("owner0", "127.0.0.1:0");
  Trainer other("other", server->runtime().address());
  for (const char* address : {"0.0.0.0:7071", "[::]:7071", "host:0", "host", "a\nb:1"}) {
    const absl::Status refused = other.JoinAs(WorkerRole::kOwner, address).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("the address of other")) << address;
  }
}

TEST(RegistrarService, RPC_63_OtherDaemonsJoinAndAllJoinAgainAfterARestart) {
  auto server = StartServer("owner0", "127.0.0.1:0");
  const std::string address = server->runtime().address();
  auto other = StartServer("owner1", "127.0.0.1:0", address);
  Trainer a("a", address);
  ASSERT_TRUE(a.Join().ok());
  EXPECT_TRUE(Eventually([&] { return a.World().size() == 3; }));
  const std::vector<std::string> before = a.World();

  server.reset();
  server = StartServer("owner0", address);
  EXPECT_TRUE(Eventually([&] { return a.World().size() == 3; }))
      << "owner1 and a did not come back by themselves";
  EXPECT_EQ(a.World(), before) << "in whatever order they came back, each has its rank";
}

}  // namespace
}  // namespace psd::server
