// Clients are served while another client floods their owner.

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/psd.h"
#include "core/base/mutex.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using services::FunctionCall;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kThreads = 2;

// An owner whose threads for user work can be kept busy, and which notes the order in which clients
// are served.
class FairnessTest : public ::testing::Test {
 protected:
  ~FairnessTest() override { Release(); }

  worker::RuntimeOptions Options() {
    worker::RuntimeOptions options;
    options.threads = kThreads;
    options.max_queued_functions = 1'000;  // fewer than the calls that a session may have in flight
    auto add = [&](const std::string& name, services::SyncFunction function) {
      EXPECT_TRUE(options.functions.Register(name, std::move(function)).ok());
    };
    // Keeps its thread busy, so that the owner does not replace it as it does a waiting thread.
    add("hold", [this](const FunctionCall&, Values) -> absl::StatusOr<Values> {
      const int mine = ++holding_;
      while (released_ < mine) std::this_thread::yield();
      return Values{};
    });
    add("note", [this](const FunctionCall& call, Values) -> absl::StatusOr<Values> {
      MutexLock lock(mutex_);
      served_.push_back(call.caller().name);
      return Values{};
    });
    return options;
  }

  Future<Values> Start(Worker& client, const std::string& function) {
    return client.RpcAsync("owner", Function::Registered(function), {});
  }
  void HoldAllThreads() {
    for (int i = 0; i < kThreads; ++i) held_.push_back(Start(*flooder_, "hold"));
    while (holding_ < kThreads) std::this_thread::yield();
  }
  void Release(int calls = kThreads) { released_ = calls; }
  void WaitUntilQueued(size_t calls) {
    while (owner_.runtime().executor_stats().queued < calls) std::this_thread::yield();
  }

  std::atomic<int> holding_{0};
  std::atomic<int> released_{0};  // the number of calls that may return and give back their thread
  Mutex mutex_;
  std::vector<std::string> served_ PSD_GUARDED_BY(mutex_);
  TestOwner owner_{"owner", Options()};
  std::unique_ptr<Worker> flooder_ = StartTrainer("flooder", {owner_.address()});
  std::unique_ptr<Worker> honest_ = StartTrainer("honest", {owner_.address()});
  std::vector<Future<Values>> held_;
};

TEST_F(FairnessTest, AFewCallsOfOthersStartBeforeAnHonestClients) {
  constexpr size_t kFlood = 12'000;
  const size_t room = owner_.runtime().options().max_queued_functions / 2;
  ASSERT_TRUE(flooder_->SetDefaultTimeout(absl::ZeroDuration()).ok());
  HoldAllThreads();
  std::vector<Future<Values>> flood;
  for (size_t i = 0; i < kFlood; ++i) flood.push_back(Start(*flooder_, "note"));
  // All calls have arrived when the queue of the session is full and the others were refused.
  const auto ready = [](const Future<Values>& call) { return call.IsReady(); };
  while (std::count_if(flood.begin(), flood.end(), ready) < static_cast<ptrdiff_t>(kFlood - room)) {
    std::this_thread::yield();
  }
  WaitUntilQueued(room);
  Future<Values> honest = Start(*honest_, "note");
  WaitUntilQueued(room + 1);
  Release(1);  // with a single thread, calls are noted in the order in which they began
  EXPECT_TRUE(honest.Wait().ok());
  Release();
  for (const Future<Values>& call : flood) {
    const absl::Status status = call.Wait().status();
    if (status.ok()) continue;
    ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    ASSERT_THAT(std::string(status.message()), HasSubstr("the queue of this session is full"));
    ASSERT_THAT(std::string(status.message()), HasSubstr("retry"));
  }
  MutexLock lock(mutex_);
  const auto position = std::find(served_.begin(), served_.end(), "honest") - served_.begin();
  EXPECT_LE(position, 1) << "calls of the other began before";
}

TEST_F(FairnessTest, StepsAndPullsWaitForNoUser) {
  constexpr int64_t kElements = 1 << 20;  // too many for the thread that reads the network
  const RRef parameter =
      MakeParameter(*honest_, "owner", "p", Must(Tensor::Zeros({kElements}, DType::kF32)));
  auto optimizer = Must(DistributedOptimizer::Create(*honest_, "o", Sgd{}, {parameter}));
  HoldAllThreads();
  std::vector<Future<Values>> flood;
  for (int i = 0; i < 100; ++i) flood.push_back(Start(*flooder_, "note"));
  WaitUntilQueued(flood.size());
  {
    Context context = Must(honest_->NewContext());
    std::vector<Variable> pulled = Must(honest_->ToHere({parameter}, context));
    ASSERT_TRUE(context.Backward({Sum(pulled[0])}).ok());
    EXPECT_TRUE(optimizer->Step(context).ok());
  }
  MutexLock lock(mutex_);
  EXPECT_THAT(served_, IsEmpty()) << "users still wait";
}

// The program makes 2000 x 2000 elements from two arguments of 2000. It must not run on the thread
// that receives calls, because no other call of the connection would be received meanwhile.
TEST_F(FairnessTest, AProgramThatGrowsDoesNotHoldUpTheCallsBehindIt) {
  ProgramBuilder builder;
  const ProgramBuilder::Ref column = builder.Input(), row = builder.Input();
  ProgramBuilder::Ref square = builder.Call("matmul", {column, row});
  for (int i = 0; i < 3; ++i) square = builder.Call("mul", {square, square});
  const Function grows(Must(builder.Build({builder.Call("sum", {square})})));
  HoldAllThreads();
  Future<Values> heavy =
      flooder_->RpcAsync("owner", grows,
                         {Variable(Must(Tensor::Zeros({2000, 1}, DType::kF32))),
                          Variable(Must(Tensor::Zeros({1, 2000}, DType::kF32)))});
  const Variable one(Must(Tensor::Zeros({4}, DType::kF32)));
  EXPECT_TRUE(flooder_->RpcSync("owner", Function::Operator("add", 2), {one, one}).ok());
  EXPECT_FALSE(heavy.IsReady()) << "it waits for a thread of its own";
  Release();
  EXPECT_TRUE(heavy.Wait().ok());
}

}  // namespace
}  // namespace psd
