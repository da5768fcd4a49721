// Groups whose members reach each other over connections that delay every byte.

#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/collectives/group.h"
#include "client/ddp/buffered_data_parallel.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "core/base/status.h"
#include "core/carrier/faulty/tcp_route.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/ddp/replica_world.h"

namespace psd {
namespace {

constexpr int kRanks = 3;
constexpr int64_t kLarge = 100'000;
constexpr absl::Duration kOneWay = absl::Milliseconds(30);

// Starts a worker that the others reach through a route with a delay.
void AddBehindRoute(GroupWorld& world, std::vector<std::unique_ptr<carrier::TcpRoute>>& routes) {
  absl::Status started = absl::UnavailableError("no port");
  for (int tries = 0; tries < 10 && !started.ok(); ++tries) {
    int port = 0;
    close(carrier::ListenOnLoopback(&port));  // it is free until another process takes it
    auto route = std::make_unique<carrier::TcpRoute>(absl::StrCat("127.0.0.1:", port), kOneWay);
    WorkerOptions options = world.Options(absl::StrCat("t", world.workers.size()));
    options.listen = absl::StrCat("127.0.0.1:", port);
    options.advertise = route->address();
    absl::StatusOr<std::unique_ptr<Worker>> worker = Worker::Start(std::move(options));
    started = worker.status();
    if (!started.ok()) continue;
    world.workers.push_back(*std::move(worker));
    routes.push_back(std::move(route));
  }
  ASSERT_TRUE(started.ok()) << started;
}

class SlowLinksTest : public ::testing::Test {
 protected:
  SlowLinksTest() : world_(/*trainers=*/0, /*shared_memory=*/false) {
    for (int rank = 0; rank < kRanks; ++rank) AddBehindRoute(world_, routes_);
    groups_ = world_.JoinAll("ranks");
  }
  // No route is left out: every rank but the first was reached through its own.
  void ExpectRoutesUsed() {
    for (int rank = 1; rank < kRanks; ++rank) EXPECT_GT(routes_[rank]->connections(), 0u) << rank;
  }
  std::vector<absl::Status> OnAll(const std::function<absl::Status(int, Group&)>& f) {
    std::vector<absl::Status> statuses(kRanks);
    InParallel(kRanks, [&](int rank) { statuses[rank] = f(rank, *groups_[rank]); });
    return statuses;
  }

  std::vector<std::unique_ptr<carrier::TcpRoute>> routes_;
  GroupWorld world_;  // ends before the routes
  std::vector<std::shared_ptr<Group>> groups_;
};

// The results of all operations on rank 0.
std::vector<Tensor> Compute(const std::vector<std::shared_ptr<Group>>& groups) {
  std::vector<Tensor> results;
  InParallel(kRanks, [&](int rank) {
    Group& group = *groups[rank];
    std::vector<Tensor> mine;
    for (const int64_t elements : {int64_t{3}, int64_t{3} * kLarge}) {
      const Tensor input = Wavy({elements}, rank);
      mine.push_back(Must(group.AllReduce(input)));
      mine.push_back(Must(group.ReduceScatter(input)));
      for (const Tensor& part : Must(group.AllGather(input))) mine.push_back(part);
      mine.push_back(Must(group.Broadcast(input, 1)));
      const Future<Unit> sent = group.SendAsync(input, (rank + 1) % kRanks);
      mine.push_back(Must(group.Receive((rank + kRanks - 1) % kRanks)));
      EXPECT_TRUE(sent.Wait().ok());
      EXPECT_TRUE(group.Barrier().ok());
    }
    if (rank == 0) results = std::move(mine);
  });
  return results;
}

TEST_F(SlowLinksTest, DDP_31_ADelayChangesNoBit) {
  const std::vector<Tensor> slow = Compute(groups_);
  ExpectRoutesUsed();
  GroupWorld near(kRanks);
  const std::vector<Tensor> fast = Compute(near.JoinAll("ranks"));
  ASSERT_EQ(slow.size(), fast.size());
  for (size_t i = 0; i < slow.size(); ++i) EXPECT_TRUE(SameBits(slow[i], fast[i])) << i;
}

// The parameters of rank 0 after steps with averaged gradients and a sharded optimizer.
std::vector<Tensor> Train(GroupWorld& world, const std::vector<std::shared_ptr<Group>>& groups) {
  std::vector<Replica> replicas;
  for (const auto& worker : world.workers)
    replicas.push_back(Must(Replica::Create(*worker, Model({{7}, {300, 300}, {3}, {64, 3}}))));
  InParallel(kRanks, [&](int rank) {
    const Replica& replica = replicas[rank];
    const auto ddp = Must(BufferedDataParallel::Create(groups[rank], replica));
    const auto zero = Must(ZeroRedundancyOptimizer::Create(groups[rank], replica, Adam{}));
    for (int step = 0; step < 2; ++step) {
      const Context context = WithGradients(replica, Gradients(replica, 5 * step + rank));
      ASSERT_TRUE(ddp->AllReduceGradients(context).ok());
      ASSERT_TRUE(zero->Step(context).ok());
    }
    ASSERT_TRUE(zero->Consolidate(1).ok());
  });
  for (int rank = 1; rank < kRanks; ++rank) ExpectSameElements(replicas[rank], replicas[0]);
  return Must(replicas[0].Elements());
}

TEST_F(SlowLinksTest, DDP_31_ReplicasTrainToTheSameBits) {
  const std::vector<Tensor> slow = Train(world_, groups_);
  ExpectRoutesUsed();
  GroupWorld near(kRanks);
  const std::vector<Tensor> fast = Train(near, near.JoinAll("ranks"));
  for (size_t i = 0; i < slow.size(); ++i) EXPECT_TRUE(SameBits(slow[i], fast[i])) << i;
}

TEST_F(SlowLinksTest, DDP_30_ARankThatDiesBehindADelayIsNamedAndTheOthersGoOn) {
  const auto statuses = OnAll([&](int rank, Group& group) -> absl::Status {
    for (int call = 0;; ++call) {
      if (rank == 1 && call == 2) {
        RuntimeOf(*world_.workers[1]).agent().Shutdown(absl::ZeroDuration());
        return absl::OkStatus();
      }
      PSD_RETURN_IF_ERROR(group.AllReduce(Wavy({kLarge}, rank)));
    }
  });
  for (int rank : {0, 2}) {
    const auto detail = GetDetail(statuses[rank]);
    EXPECT_EQ(detail.has_value() ? detail->worker : "", "t1") << statuses[rank];
  }
  OnAll([&](int rank, Group& group) {
    if (rank == 1) return absl::OkStatus();
    const auto again = Must(group.Rebuild(*world_.workers[rank]));
    EXPECT_EQ(again->size(), kRanks - 1);
    EXPECT_TRUE(again->AllReduce(Wavy({kLarge}, rank)).ok());
    return absl::OkStatus();
  });
}

TEST_F(SlowLinksTest, DDP_30_AMissedDeadlineReachesEveryRankBehindADelay) {
  CollectiveOptions soon;
  soon.timeout = kOneWay / 3;
  OnAll([&](int rank, Group& group) { return rank == 2 ? absl::OkStatus() : group.Barrier(soon); });
  const auto next = [](int rank, Group& group) {
    // The call that the late rank makes now may complete there, as the others have made it.
    if (rank == 2) group.Barrier().IgnoreError();
    return group.Barrier();
  };
  for (const absl::Status& status : OnAll(next)) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(
        std::string(status.message()),
        ::testing::AllOf(::testing::HasSubstr("not made by"), ::testing::HasSubstr("rank 2 (t2)")));
  }
}

}  // namespace
}  // namespace psd
