// A whole program: a server that averages the gradients of n trainers, round by round.

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/calls.h"
#include "client/psd.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/runtime/runtime.h"
#include "core/store/value.h"
#include "core/tensor/sparse_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/function_world.h"

namespace psd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kTrainers = 3;

Tensor Mean(std::vector<float> sum, const Shape& shape) {
  for (float& element : sum) element /= kTrainers;
  return Tensor::Of<float>(shape, sum);
}

absl::StatusOr<Value> MeanOfDense(const std::vector<Value>& gradients) {
  const Shape shape = gradients[0].As<Variable>()->tensor().shape();
  std::vector<float> sum(static_cast<size_t>(shape.NumElements()), 0);
  for (const Value& gradient : gradients) {
    const std::vector<float> part = Elements(gradient.As<Variable>()->tensor());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  return Value(Mean(std::move(sum), shape));
}

absl::StatusOr<Value> MeanOfSparse(const std::vector<Value>& gradients) {
  std::vector<SparseTensor> parts;
  for (const Value& gradient : gradients) parts.push_back(*gradient.AsSparse());
  PSD_ASSIGN_OR_RETURN(SparseTensor all, ConcatSparse(parts));
  PSD_ASSIGN_OR_RETURN(SparseTensor sum, all.Coalesced());
  const Tensor values = Mean(Elements(sum.values()), sum.values().shape());
  PSD_ASSIGN_OR_RETURN(SparseTensor mean, SparseTensor::Create(sum.shape(), sum.indices(), values));
  return Value(std::move(mean));
}

// Averages the gradients of each round. Thread-safe. Holds no thread while it waits for gradients.
class Averager : public store::Object {
 public:
  std::string TypeName() const override { return "averager"; }

  // Gives the mean of the round once all its gradients have arrived. A gradient of a later round
  // ends the round before with ABORTED.
  Future<Values> Average(int64_t round, const Value& gradient) PSD_EXCLUDES(mutex_) {
    Promise<Values> mine;
    std::vector<Promise<Values>> overtaken, ready;
    std::vector<Value> gradients;
    {
      MutexLock lock(mutex_);
      if (round < round_) {
        return Future<Values>::Ready(absl::FailedPreconditionError(
            absl::StrCat("round ", round, " is over: round ", round_, " has begun")));
      }
      if (round > round_) {
        round_ = round;
        gradients_.clear();
        overtaken.swap(waiting_);
      }
      gradients_.push_back(gradient);
      waiting_.push_back(mine);
      if (waiting_.size() == kTrainers) {
        ready.swap(waiting_);
        gradients.swap(gradients_);
        ++round_;
      }
    }
    for (const auto& promise : overtaken) {
      promise.Set(absl::AbortedError(absl::StrCat("round ", round, " has begun")));
    }
    if (ready.empty()) return mine.future();
    auto mean =
        gradients[0].AsSparse() != nullptr ? MeanOfSparse(gradients) : MeanOfDense(gradients);
    for (const auto& promise : ready) {
      promise.Set(mean.ok() ? absl::StatusOr<Values>(Values{*mean}) : mean.status());
    }
    return mine.future();
  }

  size_t NumWaiting() PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return waiting_.size();
  }

 private:
  Mutex mutex_;  // leaf
  int64_t round_ PSD_GUARDED_BY(mutex_) = 1;
  std::vector<Value> gradients_ PSD_GUARDED_BY(mutex_);
  std::vector<Promise<Values>> waiting_ PSD_GUARDED_BY(mutex_);
};

class AveragingServerTest : public ::testing::Test {
 protected:
  AveragingServerTest() {
    for (size_t i = 0; i < kTrainers; ++i) {
      trainers_.push_back(StartTrainer(absl::StrCat("trainer", i), {server_.address()}));
      RRef averager = Must(trainers_[i]->Remote("server", Function::Registered("averager"), {}));
      servers_.emplace_back(*trainers_[i], averager);
    }
  }

  worker::RuntimeOptions Options() {
    using services::FunctionCall;
    worker::RuntimeOptions options;
    EXPECT_TRUE(options.functions
                    .Register("averager",
                              [averager = averager_](const FunctionCall&,
                                                     Values) -> absl::StatusOr<Values> {
                                return Values{Value(std::shared_ptr<store::Object>(averager))};
                              })
                    .ok());
    EXPECT_TRUE(options.functions
                    .RegisterAsyncMethod<Averager>("average",
                                                   [](const std::shared_ptr<Averager>& averager,
                                                      const FunctionCall&, Values arguments) {
                                                     return averager->Average(IntOf(arguments[0]),
                                                                              arguments[1]);
                                                   })
                    .ok());
    return options;
  }

  Future<Values> Send(size_t trainer, int64_t round, Value gradient) {
    return servers_[trainer].RpcAsync("average", {round, std::move(gradient)});
  }

  const std::shared_ptr<Averager> averager_ = std::make_shared<Averager>();
  TestOwner server_{"server", Options()};
  std::vector<std::unique_ptr<Worker>> trainers_;
  std::vector<ObjectProxy> servers_;  // each trainer's proxy of the same object
};

TEST_F(AveragingServerTest, RPC_67_EveryTrainerGetsTheMeanOfItsRound) {
  for (int64_t round = 1; round <= 5; ++round) {
    std::vector<Future<Values>> answers;
    for (size_t i = 0; i < kTrainers; ++i) {
      const size_t trainer = (i + static_cast<size_t>(round)) % kTrainers;
      const auto mine = static_cast<float>(trainer + 1);
      answers.push_back(
          Send(trainer, round, Tensor::Of<float>({2}, {mine, static_cast<float>(round)})));
    }
    for (const Future<Values>& answer : answers) {
      EXPECT_THAT(Elements(Must(answer.Wait())[0].As<Variable>()->tensor()),
                  ElementsAre(2, static_cast<float>(round)));
    }
  }
}

TEST_F(AveragingServerTest, RPC_67_SparseGradientsStaySparse) {
  std::vector<Future<Values>> answers;
  for (size_t i = 0; i < kTrainers; ++i) {
    const auto own_row = static_cast<int64_t>(i);
    answers.push_back(
        Send(i, 1,
             Must(SparseTensor::Create({1000, 1}, Tensor::Of<int64_t>({1, 2}, {own_row, 7}),
                                       Tensor::Of<float>({2, 1}, {3, 1})))));
  }
  for (const Future<Values>& answer : answers) {
    const Values mean = Must(answer.Wait());
    ASSERT_NE(mean[0].AsSparse(), nullptr);
    EXPECT_EQ(Elements<int64_t>(mean[0].AsSparse()->indices()), (std::vector<int64_t>{0, 1, 2, 7}));
    EXPECT_THAT(Elements(mean[0].AsSparse()->values()), ElementsAre(1, 1, 1, 1));
  }
}

TEST_F(AveragingServerTest, RPC_67_WhoComesTooLateIsToldAndHoldsUpNobody) {
  Future<Values> slow = Send(0, 1, Tensor::Scalar(9.0f));
  while (averager_->NumWaiting() == 0) std::this_thread::yield();
  std::vector<Future<Values>> answers;
  for (size_t i = 0; i < kTrainers; ++i) answers.push_back(Send(i, 2, Tensor::Scalar(6.0f)));
  for (const Future<Values>& answer : answers) {
    EXPECT_THAT(Elements(Must(answer.Wait())[0].As<Variable>()->tensor()), ElementsAre(6));
  }
  EXPECT_EQ(slow.Wait().status().code(), absl::StatusCode::kAborted);
  const absl::Status late = Send(1, 2, Tensor::Scalar(9.0f)).Wait().status();
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(late.message()), HasSubstr("round 2 is over"));
}

}  // namespace
}  // namespace psd
