// Two workers of one host whose links break at any message, over shared memory and over the
// network, and that change between the two each time: no call is lost, and none is applied twice.
// Large messages over shared memory are lent, and some leases are out when links break.

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/executor.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/thread_pool.h"
#include "core/base/timer.h"
#include "core/carrier/carrier.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/carrier/shm/host_carrier.h"
#include "core/carrier/shm/shm_factory.h"
#include "core/rpc/rpc_agent.h"
#include "gtest/gtest.h"
#include "tests/core/carrier/lending/lending_carrier.h"
#include "tests/core/carrier/shm_route.h"

namespace psd::rpc {
namespace {

// Decides at each message that is sent what breaks. Thread-safe.
class Faults {
 public:
  explicit Faults(uint64_t seed) : dice_(seed) {}

  void SetRoute(carrier::ShmRoute* route) { route_ = route; }
  // Returns true if the link of the message is to be closed.
  bool OnSend() {
    MutexLock lock(mutex_);
    if (OneIn(10)) shared_memory_ = !shared_memory_;
    if (OneIn(30)) {
      route_->CutNow();
      ++broken_;
    }
    const bool closes = OneIn(30);
    broken_ += closes ? 1 : 0;
    return closes;
  }
  void OnOpened(const std::string& description) {
    MutexLock lock(mutex_);
    ++opened_[description.substr(0, description.find(' '))];
  }
  bool shared_memory() {
    MutexLock lock(mutex_);
    return shared_memory_;
  }
  const std::string& route() const { return route_->address(); }
  int broken() {
    MutexLock lock(mutex_);
    return broken_;
  }
  int opened(const std::string& carrier) {
    MutexLock lock(mutex_);
    return opened_[carrier];
  }

 private:
  bool OneIn(unsigned chances) PSD_REQUIRES(mutex_) { return dice_() % chances == 0; }

  carrier::ShmRoute* route_ = nullptr;  // set before the first message
  Mutex mutex_;
  std::mt19937_64 dice_ PSD_GUARDED_BY(mutex_);
  bool shared_memory_ PSD_GUARDED_BY(mutex_) = true;
  int broken_ PSD_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> opened_ PSD_GUARDED_BY(mutex_);
};

// Dials shared memory through the route, if it is there now.
class RoutedCarrier : public carrier::Carrier {
 public:
  RoutedCarrier(std::shared_ptr<Carrier> inner, std::shared_ptr<Faults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}
  std::string Name() const override { return inner_->Name(); }
  absl::StatusOr<std::string> Listen(const std::string& address,
                                     carrier::AcceptCallback accept) override {
    return inner_->Listen(address, std::move(accept));
  }
  void Connect(const std::string&, absl::Duration timeout,
               std::shared_ptr<carrier::LinkHandler> handler,
               carrier::ConnectCallback done) override {
    if (!faults_->shared_memory()) return done(absl::UnavailableError("there is none now"));
    inner_->Connect(faults_->route(), timeout, std::move(handler), std::move(done));
  }
  void Shutdown() override { inner_->Shutdown(); }

 private:
  const std::shared_ptr<Carrier> inner_;  // shared with the test
  const std::shared_ptr<Faults> faults_;  // shared with the test
};

// Closes links in place of sending a message.
class BreakingCarrier : public carrier::Carrier {
 public:
  BreakingCarrier(std::shared_ptr<Carrier> inner, std::shared_ptr<Faults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}
  std::string Name() const override { return inner_->Name(); }
  absl::StatusOr<std::string> Listen(const std::string& address,
                                     carrier::AcceptCallback accept) override {
    return inner_->Listen(address, [faults = faults_, accept = std::move(accept)](
                                       std::shared_ptr<carrier::Link> link) {
      return accept(std::make_shared<Link>(std::move(link), faults));
    });
  }
  void Connect(const std::string& address, absl::Duration timeout,
               std::shared_ptr<carrier::LinkHandler> handler,
               carrier::ConnectCallback done) override {
    inner_->Connect(address, timeout, std::move(handler),
                    [faults = faults_, done = std::move(done)](
                        absl::StatusOr<std::shared_ptr<carrier::Link>> link) mutable {
                      if (!link.ok()) return done(link.status());
                      faults->OnOpened((*link)->Description());
                      done(std::make_shared<Link>(*std::move(link), faults));
                    });
  }
  void Shutdown() override { inner_->Shutdown(); }

 private:
  class Link : public carrier::Link {
   public:
    Link(std::shared_ptr<carrier::Link> inner, std::shared_ptr<Faults> faults)
        : inner_(std::move(inner)), faults_(std::move(faults)) {}
    absl::Status Send(carrier::Message message) override {
      if (!faults_->OnSend()) return inner_->Send(std::move(message));
      inner_->Close();
      return absl::UnavailableError("the link broke");
    }
    void HelpUntil(absl::FunctionRef<bool()> done) override { inner_->HelpUntil(done); }
    void Close() override { inner_->Close(); }
    std::string Description() const override { return inner_->Description(); }

   private:
    const std::shared_ptr<carrier::Link> inner_;  // shared with its carrier
    const std::shared_ptr<Faults> faults_;        // shared with the test
  };

  const std::shared_ptr<Carrier> inner_;  // shared with the test
  const std::shared_ptr<Faults> faults_;  // shared with the test
};

// A worker that counts how often each call is applied, and sends its payload back.
class Worker {
 public:
  Worker(const std::string& name, Incarnation incarnation, const std::shared_ptr<Faults>& faults)
      : executor_(std::make_shared<ThreadPool>(OneThread())),
        timers_(std::make_shared<TimerQueue>()) {
    AgentOptions options;
    options.self = {name, incarnation};
    // The long times keep a busy machine from being taken for a broken network.
    options.session.silence = options.session.lease = absl::Minutes(5);
    options.session.reconnect_min = absl::Milliseconds(1);
    options.session.reconnect_max = absl::Milliseconds(20);
    carrier::ShmCarrierOptions within;
    within.rings = {4096, 8192, 2};
    within.keepalive_timeout = absl::Minutes(5);
    carrier::GrpcCarrierOptions network;
    network.keepalive_timeout = absl::Minutes(5);
    shm_ = std::make_shared<carrier::LendingCarrier>(*carrier::NewShmCarrier(within));
    auto shm = std::make_shared<RoutedCarrier>(shm_, faults);
    auto host = carrier::NewHostCarrier(*carrier::NewGrpcCarrier(network), std::move(shm),
                                        /*folder=*/nullptr, NewNullLogger());
    options.carrier = std::make_shared<BreakingCarrier>(std::move(host), faults);
    options.executor = executor_;
    options.timers = timers_;
    agent_ = *RpcAgent::Create(std::move(options));
    agent_->RegisterMethod({"test.echo_once", MethodKind::kMutation, RunsOn::kExecutor,
                            [this](std::shared_ptr<ServerCall> call) { Echo(*call); }});
  }
  ~Worker() {
    agent_.reset();
    executor_->Shutdown();
    timers_->Stop();
  }

  RpcAgent& agent() { return *agent_; }
  uint64_t lent() const { return shm_->shared_traffic().lent; }
  std::map<int, int> applied() {
    MutexLock lock(mutex_);
    return applied_;
  }

 private:
  static ThreadPoolOptions OneThread() {
    ThreadPoolOptions options;
    options.threads = 1;
    return options;
  }
  void Echo(ServerCall& call) {
    if (call.BeginApply()) {
      int number = -1;
      EXPECT_TRUE(absl::SimpleAtoi(call.payload().header, &number));
      MutexLock lock(mutex_);
      ++applied_[number];
    }
    call.Reply(std::move(call.payload()));
  }

  Mutex mutex_;
  std::map<int, int> applied_ PSD_GUARDED_BY(mutex_);
  std::shared_ptr<carrier::Carrier> shm_;  // shared with the agent
  std::shared_ptr<ThreadPool> executor_;   // shared with the agent
  std::shared_ptr<TimerQueue> timers_;     // shared with the agent
  std::unique_ptr<RpcAgent> agent_;
};

std::string BytesOf(int number) {
  const size_t sizes[] = {0, 10, 3000, 50'000, 100'000, 300'000};
  return std::string(sizes[number % 6], static_cast<char>('a' + number % 26));
}

TEST(AgentHostFaults, CallsAreAppliedOnceWhateverBreaks) {
  constexpr int kCalls = 300;
  constexpr int kAtOnce = 6;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    const auto faults = std::make_shared<Faults>(seed);
    std::optional<carrier::ShmRoute> route;  // outlives the workers, which dial it
    Worker a("a", 2 * seed, faults);
    Worker b("b", 2 * seed + 1, faults);
    ASSERT_TRUE(a.agent().Start("").ok());
    const std::string address = *b.agent().Start("127.0.0.1:0");
    route.emplace(*carrier::SocketOf(address));
    faults->SetRoute(&*route);
    a.agent().AddPeer("b", address);
    std::vector<absl::StatusOr<Reply>> kept;
    for (int first = 0; first < kCalls; first += kAtOnce) {
      std::vector<Call> calls;
      for (int i = first; i < first + kAtOnce; ++i) {
        Request request;
        request.method = "test.echo_once";
        request.payload.header = absl::StrCat(i);
        request.payload.buffers.push_back(Buffer::FromString(BytesOf(i)));
        calls.push_back(a.agent().StartCall("b", std::move(request), {}));
      }
      for (int i = 0; i < kAtOnce; ++i) {
        const absl::StatusOr<Reply>& reply = calls[i].reply().Wait();
        ASSERT_TRUE(reply.ok()) << reply.status();
        EXPECT_EQ(reply->payload.header, absl::StrCat(first + i));
        EXPECT_EQ(reply->payload.buffers.at(0).view(), BytesOf(first + i));
        if (i % 2 == 0) kept.push_back(reply);
      }
    }
    const std::map<int, int> applied = b.applied();
    EXPECT_EQ(applied.size(), size_t{kCalls});
    for (const auto& [number, times] : applied) EXPECT_EQ(times, 1) << number;
    EXPECT_GT(faults->broken(), 10);
    EXPECT_GT(faults->opened("shm"), 3);
    EXPECT_GT(faults->opened("grpc"), 3);
    for (const absl::StatusOr<Reply>& reply : kept) {
      int number = -1;
      ASSERT_TRUE(absl::SimpleAtoi(reply->payload.header, &number));
      EXPECT_EQ(reply->payload.buffers.at(0).view(), BytesOf(number)) << "its link has ended";
    }
    EXPECT_GT(a.lent(), 0u);
    EXPECT_GT(b.lent(), 0u);
  }
}

}  // namespace
}  // namespace psd::rpc
