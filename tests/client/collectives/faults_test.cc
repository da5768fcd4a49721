// Ranks that die, are late, leave, or call something else: every rank gets an error that says so,
// and the others can build the group again.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/collectives/group.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/status.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/collectives/other_host.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kSmall = 7;
constexpr int64_t kLarge = 100'000;
constexpr absl::Duration kShort = absl::Milliseconds(100);

Tensor Ones(int64_t elements) {
  return Must(Tensor::Full({elements}, DType::kF32, 1));
}

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}
std::string Culprit(const absl::Status& status) {
  const auto detail = GetDetail(status);
  return detail.has_value() ? detail->worker : "";
}

enum class Hosts { kOne, kTwo, kThree };  // of the ranks; those of one host share memory

class FaultsTest : public ::testing::TestWithParam<Hosts> {
 protected:
  static constexpr int kRanks = 3;

  FaultsTest() : world_(GetParam() == Hosts::kTwo ? 2 : kRanks, GetParam() != Hosts::kThree) {
    if (GetParam() == Hosts::kTwo) AddOnOtherHost(world_);
    groups_ = world_.JoinAll("ranks");
  }

  // Runs f on all ranks that are in the group at the same time, and returns its results. The result
  // of a rank without a group is OK.
  std::vector<absl::Status> OnAll(const std::function<absl::Status(int, Group&)>& f) {
    std::vector<absl::Status> statuses(kRanks);
    InParallel(kRanks, [&](int rank) {
      if (groups_[rank] != nullptr) statuses[rank] = f(rank, *groups_[rank]);
    });
    return statuses;
  }
  // The worker of that rank ends without a word to the group.
  void Kill(int rank) { RuntimeOf(*world_.workers[rank]).agent().Shutdown(absl::ZeroDuration()); }
  // The survivors can work together again.
  void ExpectRebuilt(int without, const std::vector<std::string>& named = {}) {
    InParallel(kRanks, [&](int rank) {
      if (rank == without) return;
      auto again = groups_[rank]->Rebuild(*world_.workers[rank], named, absl::Seconds(60));
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ((*again)->size(), kRanks - 1);
      EXPECT_EQ((*again)->rank(), rank < without ? rank : rank - 1);
      EXPECT_EQ(Elements(Must((*again)->AllReduce(Ones(kLarge)))).back(), kRanks - 1);
      EXPECT_FALSE(groups_[rank]->status().ok()) << "the former group is over";
    });
  }

  GroupWorld world_;
  std::vector<std::shared_ptr<Group>> groups_;
};

INSTANTIATE_TEST_SUITE_P(Carriers, FaultsTest,
                         ::testing::Values(Hosts::kOne, Hosts::kTwo, Hosts::kThree),
                         [](const auto& info) {
                           return info.param == Hosts::kOne   ? "Shm"
                                  : info.param == Hosts::kTwo ? "ShmAndGrpc"
                                                              : "Grpc";
                         });

TEST_P(FaultsTest, DDP_30_ARankThatDiedBeforeACallIsNamedOnEveryRank) {
  EXPECT_TRUE(OnAll([](int, Group& group) { return group.Barrier(); })[0].ok());
  Kill(1);
  const auto statuses = OnAll([](int rank, Group& group) {
    return rank == 1 ? absl::OkStatus() : group.AllReduce(Ones(kSmall)).status();
  });
  for (int rank : {0, 2}) {
    EXPECT_TRUE(absl::IsUnavailable(statuses[rank]) || absl::IsAborted(statuses[rank]))
        << statuses[rank];
    EXPECT_THAT(Text(statuses[rank]), HasSubstr("rank 1 (t1)"));
    EXPECT_EQ(Culprit(statuses[rank]), "t1");
  }
  ExpectRebuilt(1);
}

TEST_P(FaultsTest, DDP_30_ARankThatDiesWhileTheOthersWaitForItIsNamed) {
  const auto statuses = OnAll([&](int rank, Group& group) {
    if (rank != 0) return group.AllReduce(Ones(kLarge)).status();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    Kill(0);
    return absl::OkStatus();
  });
  for (int rank : {1, 2}) {
    EXPECT_FALSE(statuses[rank].ok());
    EXPECT_EQ(Culprit(statuses[rank]), "t0") << statuses[rank];
  }
  ExpectRebuilt(0);
}

TEST_P(FaultsTest, DDP_30_ARankThatDiesAmongManyCallsEndsThemAll) {
  const auto statuses = OnAll([&](int rank, Group& group) {
    if (rank == 2) {
      for (int i = 0; i < 10; ++i) PSD_RETURN_IF_ERROR(group.AllReduce(Ones(kLarge)));
      Kill(2);
      return absl::OkStatus();
    }
    for (;;) PSD_RETURN_IF_ERROR(group.AllReduce(Ones(kLarge)));
  });
  for (int rank : {0, 1}) EXPECT_EQ(Culprit(statuses[rank]), "t2") << statuses[rank];
  ExpectRebuilt(2);
}

TEST_P(FaultsTest, DDP_30_ALateRankFailsTheCallOnEveryRankAndIsFenced) {
  CollectiveOptions soon;
  soon.timeout = absl::Seconds(10);  // in which the other two make the call
  auto statuses = OnAll([&](int rank, Group& group) {
    return rank == 2 ? absl::OkStatus()
                     : group.AllReduce(Ones(kSmall), Reduction::kSum, soon).status();
  });
  for (int rank : {0, 1}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(statuses[rank])) << statuses[rank];
    EXPECT_THAT(Text(statuses[rank]), AllOf(HasSubstr("call 0, all-reduce (sum) of f32[7]"),
                                            HasSubstr("which was not made by rank 2 (t2)")));
    EXPECT_EQ(Culprit(statuses[rank]), "t2");
  }
  ExpectRebuilt(2, {"t2"});
  // The late rank comes now. It is told why nobody waits for it.
  const absl::Status late = groups_[2]->AllReduce(Ones(kSmall)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(Culprit(late), "t2");
}

TEST_P(FaultsTest, ZERO_17_DifferentCallsFailOnEveryRank) {
  struct Case {
    std::string named;
    std::function<absl::Status(Group&)> common, other;
  };
  CollectiveOptions labelled;
  labelled.label = "bucket 1";
  const std::vector<Case> cases = {
      {"broadcast of f32[7] from rank 0",
       [](Group& group) { return group.AllReduce(Ones(kSmall)).status(); },
       [](Group& group) { return group.Broadcast(Ones(kSmall), 0).status(); }},
      {"f32[8]", [](Group& group) { return group.AllReduce(Ones(kSmall)).status(); },
       [](Group& group) { return group.AllReduce(Ones(kSmall + 1)).status(); }},
      {"f32[100000]", [](Group& group) { return group.AllReduce(Ones(kSmall)).status(); },
       [](Group& group) { return group.AllReduce(Ones(kLarge)).status(); }},
      {"f64[7]", [](Group& group) { return group.AllReduce(Ones(kSmall)).status(); },
       [](Group& group) {
         return group.AllReduce(Must(Tensor::Full({kSmall}, DType::kF64, 1))).status();
       }},
      {"(mean)", [](Group& group) { return group.AllReduce(Ones(kSmall)).status(); },
       [](Group& group) { return group.AllReduce(Ones(kSmall), Reduction::kMean).status(); }},
      {"from rank 1", [](Group& group) { return group.Broadcast(Ones(kSmall), 0).status(); },
       [](Group& group) { return group.Broadcast(Ones(kSmall), 1).status(); }},
      {"'bucket 1'", [](Group& group) { return group.AllGather(Ones(kSmall)).status(); },
       [&](Group& group) { return group.AllGather(Ones(kSmall), labelled).status(); }},
      // The calls in another order.
      {"barrier",
       [](Group& group) {
         PSD_RETURN_IF_ERROR(group.AllGather(Ones(kLarge)));
         return group.Barrier();
       },
       [](Group& group) {
         PSD_RETURN_IF_ERROR(group.Barrier());
         return group.AllGather(Ones(kLarge)).status();
       }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.named);
    const auto statuses =
        OnAll([&](int rank, Group& group) { return rank == 1 ? c.other(group) : c.common(group); });
    for (const absl::Status& status : statuses) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(Text(status), AllOf(HasSubstr("the ranks differ in call 0"), HasSubstr(c.named),
                                      HasSubstr("rank 1 (t1)")));
    }
    EXPECT_EQ(groups_[0]->Barrier().code(), absl::StatusCode::kFailedPrecondition)
        << "the group is over";
    groups_ = world_.JoinAll("ranks");
  }
}

TEST_P(FaultsTest, DDP_30_ASendOrReceiveThatNobodyMeetsFailsOnEveryRank) {
  CollectiveOptions soon;
  soon.timeout = kShort;
  for (const bool send : {true, false}) {
    SCOPED_TRACE(send ? "send" : "receive");
    auto statuses = OnAll([&](int rank, Group& group) {
      if (rank != 0) return group.Barrier();  // which rank 0 does not make
      return send ? group.Send(Ones(kSmall), 2, soon) : group.Receive(2, soon).status();
    });
    for (const absl::Status& status : statuses) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_EQ(Culprit(status), "t2");
    }
    groups_ = world_.JoinAll("ranks");
  }
}

TEST_P(FaultsTest, ZERO_17_ASendAndAReceiveWithOtherLabelsFailOnEveryRank) {
  CollectiveOptions labelled;
  labelled.label = "x";
  for (const bool send_first : {true, false}) {
    const auto statuses = OnAll([&](int rank, Group& group) {
      if (rank == 2) return group.Barrier();
      if ((rank == 0) != send_first) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return rank == 0 ? group.Send(Ones(kSmall), 1) : group.Receive(0, labelled).status();
    });
    for (const absl::Status& status : statuses) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(Text(status), HasSubstr("with the label 'x'"));
    }
    groups_ = world_.JoinAll("ranks");
  }
}

TEST_P(FaultsTest, DDP_30_ARankThatDiesInATransferIsNamed) {
  const Future<Unit> sent = groups_[0]->SendAsync(Ones(kLarge), 1);
  const Future<Tensor> received = groups_[2]->ReceiveAsync(1);
  Kill(1);
  EXPECT_EQ(Culprit(sent.Wait().status()), "t1") << sent.Wait().status();
  EXPECT_EQ(Culprit(received.Wait().status()), "t1") << received.Wait().status();
  ExpectRebuilt(1);
}

TEST_P(FaultsTest, ARankThatHasLeftGetsAndSendsNothing) {
  groups_[1]->Leave();
  const absl::Status received = groups_[0]->Receive(1).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(received)) << received;
  EXPECT_EQ(Culprit(received), "t1");
  const absl::Status sent = groups_[2]->Send(Ones(kSmall), 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(sent)) << sent;
  EXPECT_EQ(Culprit(sent), "t1");
}

TEST_P(FaultsTest, ASendToARankThatAskedForItAndLeftFails) {
  const Future<Tensor> asked = groups_[1]->ReceiveAsync(0);
  // The question has reached rank 0 when the barrier is over.
  for (const absl::Status& met : OnAll([](int, Group& group) { return group.Barrier(); }))
    EXPECT_TRUE(met.ok()) << met;
  groups_[1]->Leave();
  EXPECT_TRUE(absl::IsFailedPrecondition(asked.Wait().status()));
  ASSERT_TRUE(world_.workers[1]->Shutdown().ok());
  const absl::Status sent = groups_[0]->Send(Ones(kSmall), 1);
  EXPECT_FALSE(sent.ok());
  EXPECT_EQ(Culprit(sent), "t1") << sent;
}

TEST_P(FaultsTest, ARankThatDiesWithAQuestionOpenIsNotSentTo) {
  const Future<Tensor> asked = groups_[1]->ReceiveAsync(0);
  for (const absl::Status& met : OnAll([](int, Group& group) { return group.Barrier(); }))
    EXPECT_TRUE(met.ok()) << met;
  Kill(1);
  absl::Status sent;
  for (int i = 0; i < 3 && sent.ok(); ++i) sent = groups_[0]->Send(Ones(kSmall), 1);
  EXPECT_EQ(Culprit(sent), "t1") << sent;
}

TEST_P(FaultsTest, WhatWasSentArrivesAlthoughTheSenderLeaves) {
  for (int round = 0; round < 3; ++round) {
    const auto statuses = OnAll([&](int rank, Group& group) -> absl::Status {
      if (rank == 2) return absl::OkStatus();
      if (rank == 1) return group.Receive(0).status();
      const absl::Status sent = group.Send(Ones(4'000'000), 1);
      groups_[0].reset();
      return sent;
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
    groups_ = world_.JoinAll("ranks");
  }
}

TEST_P(FaultsTest, AWorkerThatHasItsResultMayShutDown) {
  const auto statuses = OnAll([&](int rank, Group& group) -> absl::Status {
    PSD_RETURN_IF_ERROR(group.AllReduce(Ones(8'000'000)).status());
    return rank == 0 ? world_.workers[0]->Shutdown() : absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_P(FaultsTest, ManyReceivesThatWaitLeaveRoomForCalls) {
  constexpr int kMany = 256;
  const auto statuses = OnAll([&](int rank, Group& group) -> absl::Status {
    std::vector<Future<Tensor>> received;
    for (int i = 0; rank == 1 && i < kMany; ++i) received.push_back(group.ReceiveAsync(0));
    PSD_RETURN_IF_ERROR(group.Barrier());
    for (int i = 0; rank == 0 && i < kMany; ++i)
      PSD_RETURN_IF_ERROR(group.Send(Must(Tensor::Full({1}, DType::kF32, i)), 1));
    for (int i = 0; rank == 1 && i < kMany; ++i)
      EXPECT_EQ(Elements(Must(received[i].Wait()))[0], i);
    return group.Barrier();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_P(FaultsTest, ALabelIsAnyBytes) {
  CollectiveOptions labelled;
  labelled.label = "caf\xe9";
  const auto statuses = OnAll([&](int rank, Group& group) -> absl::Status {
    PSD_RETURN_IF_ERROR(group.AllReduce(Ones(kSmall), Reduction::kSum, labelled).status());
    if (rank == 0) return group.Send(Ones(1), 1, labelled);
    return rank == 1 ? group.Receive(0, labelled).status() : absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_P(FaultsTest, ZERO_17_ARankThatCannotGoOnTellsTheOthersWhy) {
  const auto statuses = OnAll([&](int rank, Group& group) {
    if (rank != 2) return group.AllReduce(Ones(kLarge)).status();
    return group.Fail(absl::ResourceExhaustedError("no memory for the next call"));
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(Text(status), HasSubstr("rank 2 (t2) cannot go on: no memory for the next call"));
    EXPECT_EQ(Culprit(status), "t2");
  }
}

TEST_P(FaultsTest, ARegistrarThatWasRestartedSplitsNoGroup) {
  world_.RestartRegistrar();
  InParallel(kRanks, [&](int rank) {
    auto group = groups_[rank]->Rebuild(*world_.workers[rank], {}, absl::Seconds(60));
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_EQ((*group)->size(), kRanks);
    EXPECT_EQ(Elements(Must((*group)->AllReduce(Ones(kSmall))))[0], kRanks);
  });
}

TEST_P(FaultsTest, AGroupOfOneIsBuiltAgain) {
  GroupOptions one;
  one.members = {"t0"};
  Worker& worker = *world_.workers[0];
  const auto group = Must(Group::Join(worker, "solo", one));
  const auto again = Must(group->Rebuild(worker));
  EXPECT_EQ(again->members(), one.members);
  EXPECT_TRUE(absl::IsInvalidArgument(again->Rebuild(worker, {"t0"}).status()));
}

TEST_P(FaultsTest, ARankThatLeavesAfterItsCallsLetsTheOthersFinish) {
  for (int round = 0; round < 10; ++round) {
    auto statuses = OnAll([&](int rank, Group& group) {
      absl::Status status = group.Gather(Ones(4 * kLarge), 0).status();  // too much for a notice
      if (rank == 1) groups_[1].reset();
      return status;
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
    statuses = OnAll([](int, Group& group) { return group.Barrier(); });
    for (int rank : {0, 2}) {
      EXPECT_TRUE(absl::IsFailedPrecondition(statuses[rank])) << statuses[rank];
      EXPECT_THAT(Text(statuses[rank]), HasSubstr("rank 1 (t1) has left"));
    }
    groups_ = world_.JoinAll("ranks");
  }
}

TEST_P(FaultsTest, AWorkerThatShutsDownLeavesItsGroups) {
  const Future<Unit> waiting = groups_[0]->BarrierAsync();
  ASSERT_TRUE(world_.workers[0]->Shutdown().ok());
  EXPECT_EQ(waiting.Wait().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(groups_[0]->Barrier().code(), absl::StatusCode::kFailedPrecondition);
  const auto statuses = OnAll([](int rank, Group& group) -> absl::Status {
    // t0 has made the first call, so the others may complete it.
    for (int call = 0; rank != 0 && call < 2; ++call) PSD_RETURN_IF_ERROR(group.Barrier());
    return absl::OkStatus();
  });
  for (int rank : {1, 2}) EXPECT_EQ(Culprit(statuses[rank]), "t0") << statuses[rank];
  world_.workers[1].reset();
  EXPECT_FALSE(groups_[1]->Barrier().ok()) << "a group may outlive its worker";
}

TEST_P(FaultsTest, AGroupThatFailedDoesNotHarmAnotherOneOverTheSameRanks) {
  const auto others = world_.JoinAll("others");
  groups_[1]->Leave();
  EXPECT_FALSE(groups_[0]->Barrier().ok());
  InParallel(kRanks, [&](int rank) {
    EXPECT_EQ(Elements(Must(others[rank]->AllReduce(Ones(kLarge))))[0], kRanks);
  });
}

TEST_P(FaultsTest, DDP_30_ARankThatDiesIsNamedInAllGroupsThatItIsIn) {
  const auto others = world_.JoinAll("others");
  const auto statuses = OnAll([&](int rank, Group& group) {
    if (rank != 1) return group.AllReduce(Ones(kLarge)).status();
    Kill(1);
    return absl::OkStatus();
  });
  for (int rank : {0, 2}) {
    EXPECT_EQ(Culprit(statuses[rank]), "t1") << statuses[rank];
    const absl::Status other = others[rank]->AllReduce(Ones(kSmall)).status();
    EXPECT_EQ(Culprit(other), "t1") << other;
  }
  ExpectRebuilt(1);
  groups_ = others;
  ExpectRebuilt(1);
}

TEST_P(FaultsTest, DDP_30_ARankThatDoesNotComeWhenAGroupIsBuiltAgainIsNamed) {
  Kill(1);
  const auto rebuild = [&](int rank, absl::Duration timeout) {
    return groups_[rank]->Rebuild(*world_.workers[rank], {"t1"}, timeout);
  };
  const absl::Status alone = rebuild(0, absl::Seconds(6)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(alone)) << alone;
  EXPECT_THAT(Text(alone), HasSubstr("t2"));
  InParallel(kRanks, [&](int rank) {
    if (rank == 1) return;
    const auto again = Must(rebuild(rank, absl::Seconds(60)));
    EXPECT_EQ(again->size(), kRanks - 1);
    EXPECT_TRUE(again->Barrier().ok());
  });
}

}  // namespace
}  // namespace psd
