#pragma once

// Worker a is rank 0 of a group, and the test makes up what b, rank 1, sends to it.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/future.h"
#include "core/base/timer.h"
#include "core/services/collectives/collective_call.h"
#include "core/services/collectives/collective_codec.h"
#include "core/services/collectives/collective_group.h"
#include "core/services/collectives/collective_service.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/collective.pb.h"
#include "tests/client/test_world.h"

namespace psd::services {

inline constexpr uint64_t kGeneration = 7;  // of the group

class MadeUpRankTest : public ::testing::Test {
 protected:
  MadeUpRankTest() : a_("a"), b_("b") {
    Connect(b_, a_);
    GroupMembers members;
    members.name = "ranks";
    members.generation = kGeneration;
    members.workers = {{"a", a_.runtime().incarnation()}, {"b", b_.runtime().incarnation()}};
    group_ = Must(a_.runtime().collectives().Make(members));
    members.rank = 1;
    other_ = Must(b_.runtime().collectives().Make(std::move(members)));
  }

  static void Connect(TestOwner& from, TestOwner& to) {
    from.runtime().agent().AddPeer(to.runtime().name(), to.address().address);
    Must(from.runtime().agent().Connect(to.runtime().name(), {}).Wait());
  }

  static v1::CollectiveEnter Enter(uint64_t number, const CollectiveCall& call) {
    v1::CollectiveEnter message;
    message.set_generation(kGeneration);
    message.set_number(number);
    EncodeCall(call, *message.mutable_call());
    return message;
  }
  // Returns the data of a notice of one float.
  static std::string Data(float number) {
    return {reinterpret_cast<const char*>(&number), sizeof(number)};
  }
  // Waits until the group has that many owners. Its messages own it until they are answered.
  static void WaitForOwners(const std::shared_ptr<CollectiveGroup>& group, long owners) {
    const absl::Time until = absl::Now() + absl::Seconds(120);
    while (group.use_count() > owners && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
    ASSERT_EQ(group.use_count(), owners);
  }
  // Moves the clock, and runs what is due then.
  static void Advance(FakeClock& clock, TimerQueue& timers, absl::Duration by) {
    clock.Advance(by);
    timers.Poll();
    const Promise<Unit> ran;  // after the timers that are due
    timers.RunAfter(absl::ZeroDuration(), [ran] { ran.Set(Unit{}); });
    Must(ran.future().Wait());
  }

  TestOwner a_, b_;
  std::shared_ptr<CollectiveGroup> group_;
  std::shared_ptr<CollectiveGroup> other_;  // only takes what a sends
};

}  // namespace psd::services
