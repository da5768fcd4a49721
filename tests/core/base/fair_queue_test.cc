#include "core/base/fair_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <new>
#include <random>
#include <string>
#include <vector>

namespace {

int allocations = 0;  // this program has one thread

}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace psd {
namespace {

using Queue = FairQueue<int>;

constexpr FlowId kA{1, 1}, kB{1, 2}, kC{2, 1};
constexpr int64_t kSmall = Queue::kLeastCost, kHeavy = 1'000 * kSmall;

void PushMany(Queue& queue, const FlowId& flow, int count) {
  for (int i = 0; i < count; ++i) ASSERT_TRUE(queue.Push(flow, int{i}).ok());
}

// Takes an item, charges its flow at once, and returns the flow.
FlowId Serve(Queue& queue, int64_t cost) {
  const FlowId flow = queue.Pop().flow;
  queue.Charge(flow, cost);
  return flow;
}

// Takes items until one of `flow` comes, and returns how many items of other flows came before it.
int TakenBefore(Queue& queue, const FlowId& flow, int64_t cost) {
  int others = 0;
  while (!(Serve(queue, cost) == flow)) ++others;
  return others;
}

TEST(FairQueueTest, AFlowsItemsComeInOrder) {
  Queue queue(100);
  PushMany(queue, kA, 10);
  for (int i = 0; i < 10; ++i) {
    const Queue::Taken taken = queue.Pop();
    EXPECT_EQ(taken.item, i);
    queue.Charge(taken.flow, i * kHeavy);
  }
  EXPECT_TRUE(queue.empty());
}

// Each flow has one task at a time, like a session that waits for each answer, or like several
// sessions that come and go.
TEST(FairQueueTest, FlowsThatComeAndGoTakeNoMemory) {
  constexpr int kTasks = 10'000;
  Queue queue(100);
  const auto serve = [&queue](int tasks) {
    for (int i = 0; i < tasks; ++i) {
      PushMany(queue, FlowId{1, static_cast<uint64_t>(i % 30)}, 1);
      Serve(queue, kSmall);
    }
    PushMany(queue, kA, 3);
    PushMany(queue, kC, 3);
    for (int i = 0; i < 6; ++i) Serve(queue, kHeavy);
  };
  serve(100);
  const int before = allocations;
  serve(kTasks);
  EXPECT_LT(allocations - before, kTasks / 16) << "a deque takes some for every hundred items";
}

TEST(FairQueueTest, EqualFlowsTakeTurns) {
  Queue queue(100);
  for (const FlowId& flow : {kA, kB, kC}) PushMany(queue, flow, 5);
  for (int round = 0; round < 5; ++round) {
    for (const FlowId& flow : {kA, kB, kC}) EXPECT_EQ(Serve(queue, kSmall), flow);
  }
}

TEST(FairQueueTest, ANewcomerWaitsForOneItemOfEachOtherAtMost) {
  for (int64_t cost : {kSmall, kHeavy}) {
    for (int flows : {1, 2, 3, 10}) {
      for (int served = 0; served <= 30; ++served) {
        Queue queue(10'000);
        for (int flow = 0; flow < flows; ++flow) {
          PushMany(queue, {3, static_cast<uint64_t>(flow)}, 40);
        }
        for (int i = 0; i < served; ++i) Serve(queue, i % 3 == 0 ? cost : kSmall);
        PushMany(queue, kA, 1);
        EXPECT_LE(TakenBefore(queue, kA, cost), flows) << served << " served, of cost " << cost;
      }
    }
  }
}

TEST(FairQueueTest, ANewcomerWaitsNoLongerThoughNothingIsBookedYet) {
  Queue queue(100);
  PushMany(queue, kA, 40);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(queue.Pop().flow, kA);  // 20 threads run them
  PushMany(queue, kB, 1);
  EXPECT_EQ(queue.Pop().flow, kB);
}

TEST(FairQueueTest, HeavyAndSmallFlowsGetTheSameTime) {
  Queue queue(100'000);
  PushMany(queue, kA, 20);
  PushMany(queue, kB, 40'000);
  std::map<FlowId, int64_t> spent;
  for (int i = 0; i < 10'000; ++i) {
    const FlowId flow = queue.Pop().flow;
    const int64_t cost = flow == kA ? kHeavy : kSmall;
    queue.Charge(flow, cost);
    spent[flow] += cost;
    ASSERT_LE(spent[kA], spent[kB] + 3 * kHeavy);
    ASSERT_LE(spent[kB], spent[kA] + 3 * kHeavy);
  }
}

TEST(FairQueueTest, PausingDoesNotClearADebt) {
  Queue queue(100);
  PushMany(queue, kA, 1);
  PushMany(queue, kB, 50);
  EXPECT_EQ(Serve(queue, kHeavy), kA);
  PushMany(queue, kA, 1);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(Serve(queue, kSmall), kB) << i;
}

TEST(FairQueueTest, IdlingSavesNothing) {
  Queue queue(1'000);
  PushMany(queue, kA, 1);
  Serve(queue, kSmall);
  PushMany(queue, kB, 100);
  for (int i = 0; i < 50; ++i) Serve(queue, kHeavy);
  PushMany(queue, kA, 100);
  int of_a = 0;
  for (int i = 0; i < 20; ++i) of_a += Serve(queue, kHeavy) == kA ? 1 : 0;
  EXPECT_GE(of_a, 9);
  EXPECT_LE(of_a, 11);
}

TEST(FairQueueTest, DebtsAreForgottenWhenNobodyIsThere) {
  Queue queue(100);
  PushMany(queue, kA, 1);
  Serve(queue, 1'000 * kHeavy);
  PushMany(queue, kB, 10);
  PushMany(queue, kA, 10);
  EXPECT_LE(TakenBefore(queue, kA, kSmall), 1);
}

TEST(FairQueueTest, ADebtorIsServedThoughNewcomersNeverEnd) {
  Queue queue(100);
  PushMany(queue, kB, 1);
  PushMany(queue, kA, 1);
  EXPECT_EQ(Serve(queue, kSmall), kB);
  EXPECT_EQ(Serve(queue, kHeavy), kA);
  PushMany(queue, kA, 1);
  uint64_t newcomer = 0;
  auto come = [&] { PushMany(queue, {3, ++newcomer}, 1); };
  come();
  int others = 0;
  for (;;) {
    come();
    if (Serve(queue, kSmall) == kA) break;
    ASSERT_LT(++others, 10'000);
  }
}

TEST(FairQueueTest, OneFlowFillsHalfAndTheOthersFindRoom) {
  Queue queue(100);
  PushMany(queue, kA, 50);
  const absl::Status full = queue.Push(kA, 0);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(full.message().find("50 of its tasks"), std::string::npos) << full;
  EXPECT_NE(full.message().find("places of 100"), std::string::npos) << full;
  PushMany(queue, kB, 25);
  EXPECT_FALSE(queue.Push(kB, 0).ok());
  EXPECT_EQ(queue.size(), 75u);
  Serve(queue, kSmall);
  EXPECT_FALSE(queue.Push(kA, 0).ok()) << "more than the others left";
  EXPECT_TRUE(queue.Push(kC, 0).ok());
}

TEST(FairQueueTest, AFlowThatHasItsMostTakenWaitsAndTheOthersGoOn) {
  Queue queue(100, /*max_taken=*/2);
  PushMany(queue, kA, 4);
  EXPECT_TRUE(queue.Pop().flow == kA && queue.Pop().flow == kA);
  EXPECT_FALSE(queue.HasNext());
  EXPECT_FALSE(queue.empty());
  PushMany(queue, kB, 1);
  ASSERT_TRUE(queue.HasNext());
  EXPECT_TRUE(queue.Pop().flow == kB);
  EXPECT_FALSE(queue.HasNext());
  queue.Charge(kA, kHeavy);
  ASSERT_TRUE(queue.HasNext());
  EXPECT_TRUE(queue.Pop().flow == kA);
  EXPECT_FALSE(queue.HasNext());
}

// With any events in any order, every item is taken once, in the order of its flow, and no flow
// that always has items falls behind another by more than a few of the largest costs.
TEST(FairQueueTest, AnyOrderOfEvents) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    std::mt19937 random(seed);
    auto below = [&](int bound) {
      return static_cast<int>(random() % static_cast<unsigned>(bound));
    };
    const size_t most = seed % 2 == 0 ? 3 : std::numeric_limits<size_t>::max();
    Queue queue(1'000, most);
    constexpr int kFlows = 5;
    std::vector<int> pushed(kFlows), popped(kFlows);
    std::vector<FlowId> running;
    for (int event = 0; event < 500; ++event) {
      const int flow = below(kFlows);
      const int choice = below(3);
      if (choice == 0 && queue.Push({1, static_cast<uint64_t>(flow)}, int{pushed[flow]}).ok()) {
        ++pushed[flow];
      } else if (choice == 1 && queue.HasNext()) {
        const Queue::Taken taken = queue.Pop();
        ASSERT_EQ(taken.item, popped[taken.flow.id]++) << "seed " << seed;
        running.push_back(taken.flow);
        ASSERT_LE(std::count(running.begin(), running.end(), taken.flow), 3 + 500 * (most != 3));
      } else if (!running.empty()) {
        const size_t which = static_cast<size_t>(below(static_cast<int>(running.size())));
        queue.Charge(running[which], below(3) == 0 ? kHeavy : below(2'000));
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    for (const FlowId& flow : running) queue.Charge(flow, below(2'000));
    while (!queue.empty()) {
      ASSERT_TRUE(queue.HasNext()) << "seed " << seed;
      const Queue::Taken taken = queue.Pop();
      ASSERT_EQ(taken.item, popped[taken.flow.id]++) << "seed " << seed;
      queue.Charge(taken.flow, below(2'000));
    }
    EXPECT_EQ(popped, pushed) << "seed " << seed;
  }
}

}  // namespace
}  // namespace psd
