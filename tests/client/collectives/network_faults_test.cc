// Ranks on a simulated network that die at any message of joining, or of which nothing is heard for
// a while.

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/collectives/group.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/future.h"
#include "core/base/status.h"
#include "core/carrier/carrier.h"
#include "core/carrier/faulty/faulty_network.h"
#include "core/rpc/session_options.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/test_world.h"
#include "tests/core/picky_carrier.h"

namespace psd {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int64_t kLarge = 100'000;

Tensor Ones(int64_t elements) {
  return Must(Tensor::Full({elements}, DType::kF32, 1));
}

std::string Culprit(const absl::Status& status) {
  const auto detail = GetDetail(status);
  return detail.has_value() ? detail->worker : "";
}

std::shared_ptr<carrier::FaultyNetwork> StartNetwork() {
  carrier::FaultyNetworkOptions options;
  options.silence_timeout = absl::Milliseconds(500);
  auto network = carrier::FaultyNetwork::Create(options);
  network->StartThread();
  return network;
}

rpc::SessionOptions Sessions(absl::Duration lease) {
  rpc::SessionOptions session;
  session.lease = lease;
  // Longer than a busy machine lets a rank wait, so that only a death ends a session.
  session.retry_window = std::max<absl::Duration>(lease, absl::Seconds(30));
  session.reconnect_min = absl::Milliseconds(1);
  session.reconnect_max = absl::Milliseconds(20);
  session.silence = absl::Milliseconds(500);
  return session;
}

// Decides whether a rank dies at its n-th message from Begin() on, or joins first. Thread-safe.
class Fate {
 public:
  explicit Fate(int dies_at) : messages_left_(dies_at) {}

  void Begin() { begun_ = true; }
  // The rank has joined, and no longer dies.
  void Join() { Decide(State::kJoined); }
  // To be called before each message. Returns an error if the rank is dead.
  absl::Status BeforeSending() {
    if (begun_ && --messages_left_ == 0) Decide(State::kDead);
    return state_ == State::kDead ? absl::UnavailableError("the sender is dead") : absl::OkStatus();
  }
  // Waits for the decision.
  bool Dies() {
    decided_.future().Wait().IgnoreError();  // it has no error
    return state_ == State::kDead;
  }

 private:
  enum class State { kOpen, kJoined, kDead };
  void Decide(State state) {
    State open = State::kOpen;
    if (state_.compare_exchange_strong(open, state)) decided_.Set(Unit{});
  }

  std::atomic<bool> begun_{false};
  std::atomic<int> messages_left_;
  std::atomic<State> state_{State::kOpen};
  const Promise<Unit> decided_;
};

// t1 dies when it should send its n-th message after it has begun to join. Returns false if it has
// joined before.
bool JoinWithADeath(int dies_at) {
  Fate fate(dies_at);  // outlives the carrier that asks it
  const auto network = StartNetwork();
  GroupWorld world(1, network, Sessions(absl::Seconds(6)));
  testing::PickyRules rules;
  rules.refuses = [&fate](const carrier::Message&) { return fate.BeforeSending(); };
  world.workers.push_back(Must(
      StartWithCarrier(std::make_shared<testing::PickyCarrier>(network->NewCarrier("t1"), rules),
                       world.Options("t1"))));
  world.Add();
  GroupOptions options;
  options.members = world.Names();
  options.join_timeout = absl::Seconds(30);
  std::thread death([&] {
    if (!fate.Dies()) return;
    network->Crash("t1");
    RuntimeOf(*world.workers[1]).agent().Shutdown(absl::ZeroDuration());
  });
  InParallel(kRanks, [&](int rank) {
    if (rank == 1) fate.Begin();
    absl::StatusOr<std::shared_ptr<Group>> group =
        Group::Join(*world.workers[rank], "ranks", options);
    absl::Status status = group.status();
    if (rank == 1) {
      fate.Join();
      EXPECT_TRUE(status.ok() || fate.Dies()) << dies_at << ": " << status;
      return;
    }
    // A rank that has joined learns from a call that t1 is dead.
    while (status.ok() && fate.Dies()) status = (*group)->Barrier();
    EXPECT_EQ(status.ok(), !fate.Dies()) << dies_at << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(fate.Dies() ? "t1" : "")) << dies_at;
  });
  death.join();
  return fate.Dies();
}

TEST(NetworkFaultsTest, DDP_30_ARankThatDiesAtAnyMessageOfJoiningIsNamedOnEveryRank) {
  int dies_at = 1;
  for (bool died = true; died; ++dies_at) {
    ASSERT_LT(dies_at, 100) << "t1 never joins";
    died = JoinWithADeath(dies_at);
  }
  EXPECT_GT(dies_at, 4) << "t1 meets the others twice, and connects to one of them";
}

// A rank connects to those of higher rank. Here it still has an open session with a former process
// of t1, and must wait until it meets the one that joins.
TEST(NetworkFaultsTest, DDP_30_ARankMeetsTheProcessThatJoinsAndNotTheOneBeforeIt) {
  std::atomic<bool> misses_end{false};  // outlives the carrier that asks it
  const auto network = StartNetwork();
  GroupWorld world(0, network, Sessions(absl::Seconds(6)));
  testing::PickyRules rules;
  rules.misses_end = [&misses_end] { return misses_end.load(); };
  world.workers.push_back(Must(
      StartWithCarrier(std::make_shared<testing::PickyCarrier>(network->NewCarrier("t0"), rules),
                       world.Options("t0"))));
  world.Add();
  for (const auto& former : world.JoinAll("former")) former->Leave();
  misses_end = true;
  network->Crash("t1");
  RuntimeOf(*world.workers[1]).agent().Shutdown(absl::ZeroDuration());
  world.workers[1] = Must(StartWithCarrier(network->NewCarrier("t1"), world.Options("t1")));
  const auto groups = world.JoinAll("ranks");
  InParallel(2, [&](int rank) {
    const absl::Status met = groups[rank]->Barrier();
    EXPECT_TRUE(met.ok()) << met;
  });
}

TEST(NetworkFaultsTest, DDP_30_ASilentRankIsNamedAndChangesNothingWhenItComesBack) {
  const auto network = StartNetwork();
  // A rank that is silent comes back within its lease.
  GroupWorld world(kRanks, network, Sessions(absl::Hours(1)));
  const auto groups = world.JoinAll("ranks");
  const auto silence = [&network](bool on) {
    network->SetBlackHole("t2", "*", on);
    network->SetBlackHole("*", "t2", on);
  };
  silence(true);
  const Future<Tensor> late = groups[2]->AllReduceAsync(Ones(kLarge));
  CollectiveOptions soon;
  soon.timeout = absl::Seconds(10);  // in which the other two make the call
  std::vector<std::shared_ptr<Group>> rebuilt(2);
  const auto reduce = [&rebuilt](int rank) {
    EXPECT_THAT(Elements(Must(rebuilt[rank]->AllReduce(Ones(kLarge)))), Each(2));
  };
  InParallel(2, [&](int rank) {
    const absl::Status status =
        groups[rank]->AllReduce(Ones(kLarge), Reduction::kSum, soon).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_EQ(Culprit(status), "t2") << status;
    rebuilt[rank] = Must(groups[rank]->Rebuild(*world.workers[rank], {"t2"}, absl::Seconds(60)));
    reduce(rank);
  });
  silence(false);
  const absl::Status told = late.Wait().status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(told)) << told;
  EXPECT_EQ(Culprit(told), "t2") << told;
  InParallel(2, reduce);
  EXPECT_TRUE(absl::IsDeadlineExceeded(groups[2]->Barrier())) << "its group is over";
}

}  // namespace
}  // namespace psd
