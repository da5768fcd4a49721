// One client floods an owner with calls, while another one trains and calls too.
//
//   bazel run -c opt //tests/attack:call_attack_test -- --rounds=100
//
// repeats each attack and prints a line about every round; --gtest_filter chooses one.

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "client/psd.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/crash/process_world.h"
#include "tests/crash/training.h"

ABSL_FLAG(int, rounds, 1, "how often each attack is made");

namespace psd::attack {
namespace {

// A short program that is not light (see call_service.cc), so it waits for a thread like all work
// of users.
Function Small() {
  ProgramBuilder builder;
  ProgramBuilder::Ref sum = builder.Input();
  for (int i = 0; i < 40; ++i) sum = builder.Call("add", {sum, sum});
  return Function(Must(builder.Build({sum})));
}

// A program of some hundred million multiplications.
Function Heavy() {
  ProgramBuilder builder;
  ProgramBuilder::Ref product = builder.Input();
  for (int i = 0; i < 3; ++i) product = builder.Call("matmul", {product, product});
  return Function(Must(builder.Build({builder.Call("sum", {product})})));
}

Variable ZerosOf(Shape shape) {
  return Variable(Must(Tensor::Zeros(std::move(shape), DType::kF32)));
}

// The calls of one client, which keeps a given number of them under way.
class Flood {
 public:
  Flood(Worker& client, std::string owner, Function function, Variable argument)
      : client_(client),
        owner_(std::move(owner)),
        function_(std::move(function)),
        argument_(std::move(argument)) {}

  // Begins `count` calls. Each must succeed, or be refused because the queue of its session is
  // full.
  void Begin(int count) {
    for (int i = 0; i < count; ++i) {
      calls_.push_back(client_.RpcAsync(owner_, function_, {argument_}));
      calls_.back().OnReady([this](const absl::StatusOr<Values>& result) {
        if (!result.ok() && !absl::IsResourceExhausted(result.status())) {
          ADD_FAILURE() << result.status();
        }
        ++ended_;
      });
    }
  }
  // Begins a call for each one that has ended.
  void KeepUp(int count) { Begin(count - static_cast<int>(calls_.size()) + ended_); }
  int ended() const { return ended_; }
  void AwaitAll() {
    for (const Future<Values>& call : calls_) call.Wait().IgnoreError();
    while (ended_ < static_cast<int>(calls_.size())) std::this_thread::yield();
  }

 private:
  Worker& client_;
  const std::string owner_;
  const Function function_;
  const Variable argument_;
  std::vector<Future<Values>> calls_;
  std::atomic<int> ended_{0};
};

class CallAttackTest : public testing::Test {
 protected:
  void Step() {
    EXPECT_TRUE(training_.Pull().ok());
    EXPECT_TRUE(training_.Backward().ok());
    const absl::Status stepped = training_.Step().status();
    EXPECT_TRUE(stepped.ok()) << stepped;
  }
  void CallSmall() {
    const auto called = honest_->RpcSync(owner(), Small(), {ZerosOf({4})});
    EXPECT_TRUE(called.ok()) << called.status();
  }
  std::string owner() const { return daemon_.address().name; }

  crash::Daemon daemon_;
  const std::unique_ptr<Worker> attacker_ = StartTrainer("attacker", {daemon_.address()});
  const std::unique_ptr<Worker> honest_ = StartTrainer("honest", {daemon_.address()});
  crash::Training training_ = Must(crash::Training::Create(*honest_, {owner()}, 1024));
};

// 64 heavy calls are outstanding all the time. Before a call of the honest client begins, every
// thread may take one more heavy call; a few more may end while its answer travels.
TEST_F(CallAttackTest, SixtyFourHeavyCallsLetOthersThrough) {
  constexpr int kHeavy = 64, kHonest = 5, kPassed = 16;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    Flood flood(*attacker_, owner(), Heavy(), ZerosOf({384, 384}));
    int passed = 0;
    for (int i = 0; i < kHonest; ++i) {
      flood.KeepUp(kHeavy);
      const int before = flood.ended();
      CallSmall();
      passed += flood.ended() - before;
      Step();
    }
    EXPECT_LE(passed, kHonest * kPassed) << "heavy calls ended before " << kHonest << " others";
    flood.AwaitAll();
    std::printf("round %d: %d heavy calls, %d of them ended while %d others were under way\n",
                round, flood.ended(), passed, kHonest);
  }
}

TEST_F(CallAttackTest, TwelveThousandSmallCallsLetOthersThrough) {
  constexpr int kSmall = 12'000, kPart = 500;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    Flood flood(*attacker_, owner(), Small(), ZerosOf({4}));
    int honest = 0;
    for (int begun = 0; begun < kSmall; begun += kPart) {
      flood.Begin(kPart);
      CallSmall();
      Step();
      ++honest;
    }
    flood.AwaitAll();
    std::printf("round %d: %d small calls beside %d calls and steps\n", round, flood.ended(),
                honest);
  }
}

}  // namespace
}  // namespace psd::attack

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  absl::ParseCommandLine(argc, argv);
  return RUN_ALL_TESTS();
}
