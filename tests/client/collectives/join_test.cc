// Joining groups, and what goes wrong with it.

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/collectives/group.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/carrier/carrier.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Tensor Ones(int64_t elements) {
  return Must(Tensor::Full({elements}, DType::kF32, 1));
}
std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

// All workers try to join at the same time. Returns the errors.
std::vector<absl::Status> JoinInVain(const std::vector<Worker*>& workers,
                                     const std::function<GroupOptions(int)>& options) {
  std::vector<absl::Status> statuses(workers.size());
  InParallel(static_cast<int>(workers.size()),
             [&](int i) { statuses[i] = Group::Join(*workers[i], "ranks", options(i)).status(); });
  return statuses;
}

TEST(JoinTest, TheDeclaredGroupJoinsWithoutAList) {
  GroupWorld world(0);
  std::vector<std::unique_ptr<Worker>> workers(3);
  InParallel(3, [&](int i) {
    WorkerOptions options = world.Options(absl::StrCat("w", i));
    options.group_size = 3;
    workers[i] = Must(Worker::Start(std::move(options)));
  });
  InParallel(3, [&](int i) {
    GroupOptions options;
    options.size = 3;
    const auto group = Must(Group::Join(*workers[i], "ranks", options));
    EXPECT_EQ(group->size(), 3);
    EXPECT_EQ(group->members()[group->rank()], workers[i]->name());
    EXPECT_EQ(group->rank(), workers[i]->rank() - 1) << "the registrar has rank 0 of the job";
    EXPECT_EQ(Elements(Must(group->AllReduce(Ones(2))))[0], 3);
  });
}

// So that it need not ask for them once it makes the call.
TEST(JoinTest, RanksThatShareMemorySendALateRankItsData) {
  constexpr int64_t kElements = (1 << 20) / sizeof(float);
  GroupWorld world(2);
  const auto groups = world.JoinAll("ranks");
  const auto sent = [&world] {
    const carrier::SharedTraffic traffic =
        RuntimeOf(*world.workers[0]).options().carrier->shared_traffic();
    return traffic.lent + traffic.copied_out;
  };
  const uint64_t before = sent();
  const Tensor two = Must(Tensor::Full({kElements}, DType::kF32, 2));
  const Future<Tensor> early = groups[0]->AllReduceAsync(two);
  while (sent() < before + two.NumBytes()) std::this_thread::yield();
  EXPECT_FALSE(early.IsReady());
  const Tensor late = Must(groups[1]->AllReduce(two));
  EXPECT_EQ(Elements(late), std::vector<float>(kElements, 4));
  EXPECT_TRUE(SameBits(Must(early.Wait()), late));
}

TEST(JoinTest, ZERO_22_RanksOfAGroupAreInTheOrderOfItsList) {
  GroupWorld world(3);
  InParallel(2, [&](int i) {
    GroupOptions options;
    options.members = {"t2", "t0"};
    const auto group = Must(Group::Join(*world.workers[i == 0 ? 2 : 0], "some", options));
    EXPECT_EQ(group->rank(), i);
    const Tensor mine = Must(Tensor::Full({1}, DType::kF32, i + 5));
    EXPECT_EQ(Elements(Must(group->Broadcast(mine, 0)))[0], 5);
  });
}

TEST(JoinTest, DDP_18_AGroupOfOneNeedsNobody) {
  WorkerOptions options;
  options.name = "alone";
  const auto worker = Must(Worker::Start(std::move(options)));
  GroupOptions one;
  one.members = {"alone"};
  one.size = 1;
  const auto group = Must(Group::Join(*worker, "solo", one));
  EXPECT_EQ(group->size(), 1);
  const Tensor x = Tensor::Of<float>({2}, {1, -2});
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMin})
    EXPECT_TRUE(SameBits(Must(group->AllReduce(x, reduction)), x));
  EXPECT_TRUE(SameBits(Must(group->ReduceScatter(x)), x));
  EXPECT_TRUE(SameBits(Must(group->AllGather(x))[0], x));
  EXPECT_TRUE(SameBits(Must(group->Broadcast(x, 0)), x));
  EXPECT_TRUE(SameBits(Must(group->Gather(x, 0))[0], x));
  EXPECT_TRUE(SameBits(Must(group->Scatter({x}, 0)), x));
  EXPECT_TRUE(group->Barrier().ok());
  EXPECT_EQ(group->Send(x, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(group->Receive(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(group->Broadcast(x, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(group->AllReduce(Tensor()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(group->Broadcast(Tensor(), 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(JoinTest, AMemberThatNeverJoinsIsNamed) {
  GroupWorld world(3);
  GroupOptions options;
  options.members = world.Names();
  options.join_timeout = absl::Milliseconds(100);
  const auto statuses =
      JoinInVain({world.workers[0].get(), world.workers[1].get()}, [&](int) { return options; });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(Text(status), HasSubstr("t2"));
  }
}

TEST(JoinTest, AMemberThatHasNotJoinedTheJobIsWaitedFor) {
  GroupWorld world(1);
  GroupOptions options;
  options.members = {"t0", "t1"};
  Worker& first = *world.workers[0];
  InParallel(2, [&](int i) {
    if (i == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    Worker& worker = i == 1 ? world.Add() : first;
    EXPECT_TRUE(Must(Group::Join(worker, "ranks", options))->Barrier().ok());
  });
  options.members = {"t0", "t9"};
  options.join_timeout = absl::Milliseconds(100);
  const absl::Status status = Group::Join(*world.workers[0], "ranks", options).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(Text(status), HasSubstr("t9"));
}

TEST(JoinTest, AMemberThatDoesNotListenIsNamedOnEveryRank) {
  GroupWorld world(2);
  WorkerOptions deaf = world.Options("deaf");
  deaf.listen.clear();
  const auto worker = Must(Worker::Start(std::move(deaf)));
  const auto statuses =
      JoinInVain({world.workers[0].get(), world.workers[1].get(), worker.get()}, [&](int) {
        GroupOptions options;
        options.members = {"t0", "t1", "deaf"};
        return options;
      });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(Text(status), AllOf(HasSubstr("deaf of 3 members"), HasSubstr("listen")));
  }
}

TEST(JoinTest, OptionsThatDifferAreNamedOnEveryRank) {
  GroupWorld world(2);
  const std::vector<Worker*> workers = {world.workers[0].get(), world.workers[1].get()};
  auto statuses = JoinInVain(workers, [&](int i) {
    GroupOptions options;
    options.members = {"t0", "t1"};
    if (i == 1) std::swap(options.members[0], options.members[1]);
    return options;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(Text(status), AllOf(HasSubstr("t0 t1"), HasSubstr("t1 t0")));
  }
  statuses = JoinInVain(workers, [&](int i) {
    GroupOptions options;
    options.members = {"t0", "t1"};
    options.size = i == 1 ? 3 : 2;
    return options;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(Text(status), HasSubstr("t1 joins with size 3"));
  }
}

TEST(JoinTest, AMemberThatCannotBeReachedIsNamedOnEveryRank) {
  GroupWorld world(1);
  WorkerOptions far = world.Options("far");
  far.advertise = "127.0.0.1:1";  // nobody listens there
  const auto worker = Must(Worker::Start(std::move(far)));
  const auto statuses = JoinInVain({world.workers[0].get(), worker.get()}, [&](int) {
    GroupOptions options;
    options.members = {"t0", "far"};
    options.join_timeout = absl::Seconds(10);
    return options;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(Text(status), HasSubstr("t0 cannot reach far at 127.0.0.1:1"));
  }
}

TEST(JoinTest, WrongOptionsAreRefusedAtOnce) {
  GroupWorld world(1);
  Worker& worker = *world.workers[0];
  const auto refused = [&](const std::string& name, const GroupOptions& options) {
    return absl::IsInvalidArgument(Group::Join(worker, name, options).status());
  };
  GroupOptions options;
  EXPECT_TRUE(refused("", options));
  EXPECT_TRUE(refused(std::string(200, 'x'), options));
  options.members = {"t0", "t0"};
  EXPECT_TRUE(refused("ranks", options));
  options.members = {"t1", "t2"};
  EXPECT_TRUE(refused("ranks", options)) << "this worker is no member";
  options.members = {"t0"};
  for (absl::Duration timeout : {absl::ZeroDuration(), absl::InfiniteDuration()}) {
    options.timeout = timeout;
    EXPECT_TRUE(refused("ranks", options)) << "every call has a deadline, and not " << timeout;
  }
  EXPECT_EQ(Group::Join(worker, "ranks").status().code(), absl::StatusCode::kFailedPrecondition)
      << "no group is declared";
}

TEST(JoinTest, AMemberThatLeavesTheJobWhileTheOthersJoinEndsTheWait) {
  GroupWorld world(2);
  GroupOptions options;
  options.members = world.Names();
  options.join_timeout = absl::Seconds(15);
  std::thread leaves([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    world.workers[1].reset();
  });
  const absl::Status status = Group::Join(*world.workers[0], "ranks", options).status();
  leaves.join();
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsNotFound(status)) << status;
  EXPECT_THAT(Text(status), HasSubstr("t1"));
}

}  // namespace
}  // namespace psd
