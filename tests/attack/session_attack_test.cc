// Hosts open more sessions than they need, of workers or of clients of the unary service, while
// other clients come.
//
//   bazel run -c opt //tests/attack:session_attack_test -- --rounds=6 --places=65536
//
// lets six hosts attack one after the other, and prints a line about each.

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/timer.h"
#include "core/carrier/carrier.h"
#include "core/carrier/faulty/tcp_route.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/rpc/header.h"
#include "core/rpc/header_codec.h"
#include "core/rpc/rpc_agent.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "server/daemon/config.h"
#include "server/daemon/server.h"
#include "tests/client/test_world.h"

ABSL_FLAG(int, rounds, 2, "how many hosts attack, at most 6");
ABSL_FLAG(int, places, 64, "sessions of workers for which the owner has room; a daemon: 65536");

namespace psd::attack {
namespace {

// The lease is long, so that nobody gets a place because other sessions have ended.
constexpr absl::Duration kLease = absl::Hours(1);

// A separate host. Each has another address of the loopback interface. Confined to one thread.
class Host {
 public:
  Host(int number, const std::string& owner)
      : owner_(owner), own_address_(absl::StrCat("127.0.", number / 250, ".", 2 + number % 250)) {}

  // Returns an address at which this host reaches the owner for one more connection.
  std::string RouteForOneConnection() {
    constexpr int kPerRoute = 64;  // a route has threads for each connection that it ever had
    if (connections_++ % kPerRoute == 0) {
      route_ = std::make_unique<carrier::TcpRoute>(owner_, absl::ZeroDuration(), own_address_);
    }
    return route_->address();
  }
  // The one connection on which it uses the unary service.
  v1::ParameterService::Stub& OneConnection() {
    if (stub_ == nullptr) {
      stub_ = v1::ParameterService::NewStub(
          grpc::CreateChannel(RouteForOneConnection(), grpc::InsecureChannelCredentials()));
    }
    return *stub_;
  }

 private:
  const std::string owner_;
  const std::string own_address_;
  int connections_ = 0;
  std::unique_ptr<carrier::TcpRoute> route_;
  std::unique_ptr<v1::ParameterService::Stub> stub_;
};

// Opens a session. Returns the owner's errors.
using OpenSession = std::function<absl::Status(Host& from)>;

// In each round a host opens sessions until it is refused, and then each newcomer opens one.
void Attack(const std::string& owner, int places, const OpenSession& open) {
  constexpr int kNewcomers = 5, kMostRounds = 6;  // after these rounds few places are left
  int hosts = 0;
  const int rounds = std::min(absl::GetFlag(FLAGS_rounds), kMostRounds);
  for (int round = 0; round < rounds; ++round) {
    Host attacker(++hosts, owner);
    int opened = 0;
    absl::Status refused;
    while (refused.ok() && opened < places) {
      refused = open(attacker);
      opened += refused.ok();
    }
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_LE(opened, places / 2 + 1);
    for (int i = 0; i < kNewcomers; ++i) {
      Host newcomer(++hosts, owner);
      const absl::Status came = open(newcomer);
      EXPECT_TRUE(came.ok()) << came;
    }
    std::printf("round %d: a host took %d of %d sessions, %d newcomers one each; it was told: %s\n",
                round, opened, places, kNewcomers, std::string(refused.message()).c_str());
  }
}

// The part of an owner that has the sessions of workers, with as many places as the flag says.
class SmallOwner {
 public:
  explicit SmallOwner(int places) {
    rpc::AgentOptions options;
    options.self = {"owner0", 1};
    options.session.lease = kLease;
    options.carrier = Must(carrier::NewGrpcCarrier({}));
    options.executor = std::make_shared<InlineExecutor>();
    options.timers = timers_;
    options.max_sessions = static_cast<size_t>(places);
    agent_ = Must(rpc::RpcAgent::Create(std::move(options)));
    address_ = Must(agent_->Start("127.0.0.1:0"));
  }
  const std::string& address() const { return address_; }

 private:
  const std::shared_ptr<TimerQueue> timers_ = std::make_shared<TimerQueue>();
  std::unique_ptr<rpc::RpcAgent> agent_;
  std::string address_;
};

// A link on which a worker greets. The worker's session outlives the link.
class Greeting : public carrier::LinkHandler {
 public:
  // OK once the peer has opened a session.
  Future<Unit> outcome() const { return outcome_.future(); }

  void OnMessage(carrier::Message message) override {
    const absl::StatusOr<rpc::Header> answer = rpc::DecodeHeader(message.header);
    if (!answer.ok()) {
      outcome_.Set(answer.status());
    } else if (answer->kind == rpc::MessageKind::kWelcome) {
      outcome_.Set(Unit{});
    } else if (answer->kind == rpc::MessageKind::kRefused) {
      outcome_.Set(answer->status);
    }
  }
  void OnRefused(std::string, absl::Status why) override { outcome_.Set(std::move(why)); }
  void OnClosed(absl::Status reason) override { outcome_.Set(std::move(reason)); }

 private:
  const Promise<Unit> outcome_;
};

TEST(SessionAttack, WorkersSessionsOfOneHostLetOthersIn) {
  const int places = absl::GetFlag(FLAGS_places);
  const SmallOwner owner(places);
  const auto network = Must(carrier::NewGrpcCarrier({}));
  Incarnation next = 2;
  Attack(owner.address(), places, [&](Host& from) -> absl::Status {
    auto greeting = std::make_shared<Greeting>();
    const Promise<std::shared_ptr<carrier::Link>> connected;
    network->Connect(from.RouteForOneConnection(), absl::InfiniteDuration(), greeting,
                     [&](auto link) { connected.Set(std::move(link)); });
    const auto link = Must(connected.future().Wait());
    rpc::Header hello;
    hello.kind = rpc::MessageKind::kHello;
    hello.name = absl::StrCat("worker", next);
    hello.incarnation = next++;
    hello.protocol_version = rpc::kProtocolVersion;
    hello.sequence = 1;
    EXPECT_TRUE(link->Send({rpc::EncodeHeader(hello), {}}).ok());
    const absl::Status opened = greeting->outcome().Wait().status();
    link->Close();
    return opened;
  });
  network->Shutdown();
}

// All sessions of a host come on one connection, as fast as they are answered.
TEST(SessionAttack, ClientsSessionsOfOneHostLetOthersIn) {
  constexpr int kPlaces = 4096;
  server::DaemonConfig config;
  config.name = "owner0";
  config.listen = "127.0.0.1:0";
  config.lease = config.retry_window = kLease;
  const auto owner = Must(server::Server::Create(config, {}, NewNullLogger()));
  Attack(Must(owner->Start()), kPlaces, [](Host& from) -> absl::Status {
    v1::OpenSessionRequest request;
    request.set_client("client");
    v1::OpenSessionReply reply;
    grpc::ClientContext context;
    const grpc::Status opened = from.OneConnection().OpenSession(&context, request, &reply);
    return {static_cast<absl::StatusCode>(opened.error_code()), opened.error_message()};
  });
}

}  // namespace
}  // namespace psd::attack

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  absl::ParseCommandLine(argc, argv);
  return RUN_ALL_TESTS();
}
