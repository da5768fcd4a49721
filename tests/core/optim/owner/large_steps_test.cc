// Steps that several threads share.

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/executor.h"
#include "core/base/parallel_for.h"
#include "core/base/thread_pool.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/owner/step_sweep.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/optim/steps/step_request.h"
#include "core/store/rows.h"
#include "core/store/store.h"
#include "core/store/write_claims.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/random.h"
#include "core/tensor/sparse_tensor.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "kernels/optim/arrays.h"
#include "tests/core/optim/owner/owner_fixture.h"

namespace psd::optim {
namespace {

using store::EntryPtr;

// The sizes are odd. Some parameters are cut into pieces at different places, and some share a
// piece.
const std::vector<int64_t> kSizes = {3,
                                     2 * kPieceElements + 777,
                                     0,
                                     1025,
                                     kPieceElements - 1,
                                     kernels::kOptimPartElements,
                                     kPieceElements + 1,
                                     100};

// Returns random numbers, which are kept because drawing them takes longer than the steps.
Tensor Numbers(int64_t size, DType dtype, uint64_t seed) {
  static auto& made = *new std::map<std::tuple<int64_t, DType, uint64_t>, Tensor>;
  Tensor& numbers = made[{size, dtype, seed}];
  if (!numbers.defined()) numbers = *ops::Cast(*ops::Uniform({size}, -1, 1, seed), dtype);
  return numbers;
}

class LargeStepsTest : public OwnerOptimizerTest {
 protected:
  // Takes two steps of `spec`, and returns all parameters and state as bytes.
  std::vector<std::string> Left(const OptimizerSpec& spec, DType dtype, const Helpers& helpers) {
    Reset(0);
    std::vector<EntryPtr> parameters;
    for (size_t i = 0; i < kSizes.size(); ++i) {
      parameters.push_back(
          NewParameter(std::to_string(i), Numbers(kSizes[i], dtype, /*seed=*/i + 1)));
    }
    auto optimizer = *NewOptimizer(spec, parameters, {}, helpers);
    for (uint64_t step = 1; step <= 2; ++step) {
      std::vector<ParameterGradient> gradients;
      for (size_t i = 0; i < kSizes.size(); ++i)
        gradients.push_back({parameters[i]->id, Numbers(kSizes[i], dtype, 100 * step + i)});
      EXPECT_TRUE(Step(*optimizer, std::move(gradients)).ok());
    }
    std::vector<std::string> left;
    for (size_t i = 0; i < kSizes.size(); ++i) AddBytes(optimizer->table()[i], left);
    return left;
  }

  // Appends the bytes of a parameter and of each array of its state.
  static void AddBytes(const SteppedParameter& parameter, std::vector<std::string>& to) {
    const Tensor tensor = parameter.versions()->Pin()->tensor;
    to.emplace_back(reinterpret_cast<const char*>(tensor.raw_data()), tensor.NumBytes());
    for (const StateArray& array : parameter.state())
      to.emplace_back(reinterpret_cast<const char*>(array.data), array.bytes);
  }

  // Takes four steps of parameters of several dtypes, of which each step leaves out some, so that
  // neighbours differ in dtype and in their number of steps. One optimizer steps all of them, or
  // each has its own. Returns all parameters and state as bytes.
  std::vector<std::string> LeftOfMixed(bool together, const Helpers& helpers) {
    const DType dtypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF32, DType::kF16};
    const OptimizerSpec adam{"adam", {{"amsgrad", 1}}};
    Reset(0);
    std::vector<EntryPtr> parameters;
    std::vector<std::shared_ptr<OwnerOptimizer>> optimizers;
    for (size_t i = 0; i < kSizes.size(); ++i) {
      parameters.push_back(NewParameter(std::to_string(i), Numbers(kSizes[i], dtypes[i % 5], i)));
      if (!together) optimizers.push_back(*NewOptimizer(adam, {parameters[i]}));
    }
    if (together) optimizers.push_back(*NewOptimizer(adam, parameters, {}, helpers));
    for (uint64_t step = 1; step <= 4; ++step) {
      std::vector<ParameterGradient> gradients;
      for (size_t i = 0; i < kSizes.size(); ++i) {
        if ((i + step) % 3 == 0) continue;
        gradients.push_back({parameters[i]->id, Numbers(kSizes[i], dtypes[i % 5], 100 * step + i)});
        if (!together) {
          EXPECT_TRUE(Step(*optimizers[i], std::exchange(gradients, {})).ok());
        }
      }
      if (together) {
        EXPECT_TRUE(Step(*optimizers[0], std::move(gradients)).ok());
      }
    }
    std::vector<std::string> left;
    for (const auto& optimizer : optimizers)
      for (size_t i = 0; i < optimizer->table().size(); ++i) AddBytes(optimizer->table()[i], left);
    return left;
  }

  void ExpectSameOnAnyThreads(const OptimizerSpec& spec, DType dtype) {
    const std::vector<std::string> alone = Left(spec, dtype, {});
    for (int threads : {1, 2, 5}) {
      ThreadPoolOptions options;
      options.threads = threads;
      ThreadPool pool(options);
      EXPECT_TRUE(Left(spec, dtype, {&pool, threads}) == alone)
          << spec.ToString() << " of " << DTypeName(dtype) << " on " << threads << " helpers";
    }
  }
};

TEST_F(LargeStepsTest, NumbersDoNotDependOnTheThreads) {
  for (const char* type :
       {"sgd", "adagrad", "adam", "adamw", "adamax", "adadelta", "rmsprop", "rprop"}) {
    ExpectSameOnAnyThreads({type, {}}, DType::kF32);
  }
  ExpectSameOnAnyThreads({"adam", {{"amsgrad", 1}, {"weight_decay", 0.1}}}, DType::kF64);
  ExpectSameOnAnyThreads({"sgd", {{"lr", 0.1}, {"momentum", 0.9}}}, DType::kF16);
}

TEST_F(LargeStepsTest, NorOnTheDTypesAndStepCountsOfNeighbours) {
  const std::vector<std::string> each = LeftOfMixed(/*together=*/false, {});
  ThreadPool pool({});
  EXPECT_TRUE(LeftOfMixed(/*together=*/true, {}) == each);
  EXPECT_TRUE(LeftOfMixed(/*together=*/true, {&pool, 2}) == each);
}

TEST_F(LargeStepsTest, NorDoesStochasticRounding) {
  ExpectSameOnAnyThreads({"adamw", {{"stochastic_rounding", 1}}}, DType::kBF16);
}

// Accepts tasks and runs them only when it is told to.
class StuckExecutor : public Executor {
 public:
  absl::Status Submit(Task task) override {
    tasks_.push_back(std::move(task));
    return absl::OkStatus();
  }
  size_t waiting() const { return tasks_.size(); }
  void RunAll() {
    for (Task& task : std::exchange(tasks_, {})) task();
  }

 private:
  std::vector<Task> tasks_;
};

TEST_F(LargeStepsTest, AStepNeedsNoFreeThread) {
  StuckExecutor executor;
  auto a = NewParameter("a", Numbers(4 * kPieceElements, DType::kF32, 1));
  auto optimizer = *NewOptimizer(kSgd1, {a}, {}, {&executor, 8});
  EXPECT_TRUE(Step(*optimizer, {{a->id, a->parameter->Pin()->tensor}}).ok());
  EXPECT_EQ(First(a), 0);
  EXPECT_EQ(executor.waiting(), 3u);
}

TEST_F(LargeStepsTest, SmallStepsAskNobody) {
  StuckExecutor executor;
  auto a = NewParameter("a", Numbers(2 * kPieceElements - 1, DType::kF32, 1));
  auto optimizer = *NewOptimizer(kSgd1, {a}, {}, {&executor, 8});
  EXPECT_TRUE(Step(*optimizer, {{a->id, a->parameter->Pin()->tensor}}).ok());
  EXPECT_EQ(executor.waiting(), 0u);
}

class FewRowsTest : public LargeStepsTest {
 protected:
  static constexpr int64_t kWidth = 64, kRows = kInlineElements / kWidth + 1;

  // Ones for some rows.
  static SparseTensor Ones(std::vector<int64_t> rows) {
    const auto count = static_cast<int64_t>(rows.size());
    return *SparseTensor::Create({kRows, kWidth}, Tensor::Of<int64_t>({1, count}, rows),
                                 *Tensor::Full({count, kWidth}, DType::kF32, 1));
  }
  // Starts a step, and returns how many tasks it gave to the executor.
  size_t Start(OwnerOptimizer& optimizer, const EntryPtr& parameter, std::vector<int64_t> rows) {
    ParameterGradient gradient;
    gradient.parameter = parameter->id;
    gradient.sparse = {Ones(std::move(rows))};
    StartStep(optimizer, {std::move(gradient)}, [this](absl::StatusOr<StepResult> result) {
      EXPECT_TRUE(result.ok()) << result.status();
      ++ended_;
    });
    return executor_.waiting();
  }

  StuckExecutor executor_;
  int ended_ = 0;
};

TEST_F(FewRowsTest, OfALargeParameterAreALargeStepBecauseAllOfItIsCopied) {
  auto w = NewParameter("w", *Tensor::Zeros({kRows, kWidth}, DType::kF32));
  auto optimizer = *NewOptimizer(kSgd1, {w}, {}, {}, &executor_);
  EXPECT_EQ(Start(*optimizer, w, {3}), 1u);
  EXPECT_EQ(ended_, 0);
  executor_.RunAll();
  EXPECT_EQ(ended_, 1);
}

TEST_F(FewRowsTest, OfATableAreALargeStepIfManyOthersMoveToo) {
  auto rows = *store::Rows::Create(*Tensor::Zeros({kRows, kWidth}, DType::kF32),
                                   /*requires_grad=*/true);
  auto table = *store_->Put(store::Value(std::shared_ptr<store::Object>(std::move(rows))), false);
  auto optimizer =
      *NewOptimizer({"sgd", {{"lr", 1}, {"momentum", 0.5}}}, {table}, {}, {}, &executor_);
  EXPECT_EQ(Start(*optimizer, table, {3}), 0u) << "one row moves";
  std::vector<int64_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(Start(*optimizer, table, all), 1u);
  executor_.RunAll();
  EXPECT_EQ(Start(*optimizer, table, {3}), 1u) << "all rows move";
  executor_.RunAll();
  EXPECT_EQ(ended_, 3);
}

class FullExecutor : public Executor {
 public:
  absl::Status Submit(Task) override { return absl::ResourceExhaustedError("full"); }
};

class LargeTurnTest : public LargeStepsTest {
 protected:
  void Make(int64_t elements, Executor& executor, const UpdateMode& mode = {}) {
    a_ = NewParameter("a", *Tensor::Full({elements}, DType::kF32, 1));
    OptimizerSettings settings;
    settings.mode = mode;
    optimizer_ = *NewOptimizer(kSgd1, {a_}, settings, {}, &executor);
  }
  StepRequest Request(uint64_t trainer) {
    StepRequest request;
    request.step_id = ids_.Next();
    request.member = {{trainer, 1}, std::to_string(trainer), {}};
    request.plan = *optimizer_->table().Plan({{a_->id, a_->parameter->Pin()->tensor}});
    request.done = [this](const absl::StatusOr<StepResult>& result) { ended_ += result.ok(); };
    return request;
  }
  // Starts a step that waits for another writer of its parameter, and then ends that writer's turn.
  void StepAfterAnotherWriter() {
    store::WriteClaims& claims = store_->write_claims();
    const auto claim = claims.Claim({a_->id}, [](store::WriteClaims::ClaimId) {});
    optimizer_->Step(Request(1));
    EXPECT_EQ(First(a_), 1);
    claims.Release(claim);
  }

  EntryPtr a_;
  std::shared_ptr<OwnerOptimizer> optimizer_;
  int ended_ = 0;
};

TEST_F(LargeTurnTest, ALargeStepDoesNotRunOnTheThreadThatEndsItsWait) {
  StuckExecutor executor;
  Make(kInlineElements + 1, executor);
  StepAfterAnotherWriter();
  EXPECT_EQ(First(a_), 1);
  ASSERT_EQ(executor.waiting(), 1u);
  executor.RunAll();
  EXPECT_EQ(First(a_), 0);
  EXPECT_EQ(ended_, 1);
}

TEST_F(LargeTurnTest, ASmallOneDoes) {
  StuckExecutor executor;
  Make(kInlineElements, executor);
  StepAfterAnotherWriter();
  EXPECT_EQ(First(a_), 0);
  EXPECT_EQ(executor.waiting(), 0u);
}

TEST_F(LargeTurnTest, AStepThatTheExecutorRefusesRunsAnyway) {
  FullExecutor executor;
  Make(kInlineElements + 1, executor);
  StepAfterAnotherWriter();
  EXPECT_EQ(First(a_), 0);
  EXPECT_EQ(ended_, 1);
}

// A round may be completed on the timer's thread when the lease of the last missing member ends.
TEST_F(LargeTurnTest, ALargeRoundDoesNotRunOnTheThreadThatCompletesIt) {
  StuckExecutor executor;
  Make(kInlineElements, executor, UpdateMode::Synchronous(2));
  for (uint64_t trainer : {1, 2}) optimizer_->Step(Request(trainer));
  ASSERT_EQ(executor.waiting(), 1u) << "two gradients, one of each";
  executor.RunAll();
  EXPECT_EQ(ended_, 2);
  std::map<uint64_t, RoundPlace> places;
  for (uint64_t trainer : {1, 2}) {
    StepRequest turn = Request(trainer);
    turn.step_id = {trainer, 100};
    turn.measures = true;
    turn.done = [&places, trainer](const absl::StatusOr<StepResult>& word) {
      ASSERT_TRUE(word.ok()) << word.status();
      places[trainer] = {{trainer, 100}, 0, word->round};
    };
    optimizer_->TakeTurn(std::move(turn));
  }
  for (uint64_t trainer : {1, 2}) {
    StepRequest request = Request(trainer);
    request.round = places[trainer];
    optimizer_->Measure(std::move(request), [this](const absl::StatusOr<double>& sum) {
      EXPECT_TRUE(sum.ok()) << sum.status();
      ++ended_;
    });
  }
  ASSERT_EQ(executor.waiting(), 1u);
  EXPECT_EQ(ended_, 2);
  executor.RunAll();
  EXPECT_EQ(ended_, 4);
}

// Takes no step, but calls `applied` when it is asked to.
class WatchedOptimizer : public FunctionalOptimizer {
 public:
  explicit WatchedOptimizer(std::function<void()> applied) : applied_(std::move(applied)) {}
  const OptimizerSpec& spec() const override { return spec_; }
  std::vector<StateSlot> Slots(DType) const override { return {}; }
  absl::Status CheckDType(DType) const override { return absl::OkStatus(); }
  void Apply(Stream*, const kernels::OptimBatch&) const override { applied_(); }

 private:
  const OptimizerSpec spec_{"watched", {}};
  const std::function<void()> applied_;
};

// The helper is held in its part while the step's own thread does all other parts.
TEST_F(LargeStepsTest, NothingIsSeenBeforeAllPartsAreDone) {
  constexpr int kPieces = 4;
  std::atomic<std::thread::id> stepping;
  std::promise<void> helping, released;
  std::shared_future<void> helper_came = helping.get_future().share();
  std::shared_future<void> may_end = released.get_future().share();
  std::promise<void> others_done;
  std::atomic<int> others = 0;
  const auto applied = [&] {
    if (std::this_thread::get_id() == stepping) {
      helper_came.wait();
      if (++others == kPieces - 1) others_done.set_value();
    } else {
      helping.set_value();
      may_end.wait();
    }
  };
  ASSERT_TRUE(registry_
                  .Register("watched",
                            [&](const OptimizerSpec&) {
                              return std::make_unique<WatchedOptimizer>(applied);
                            })
                  .ok());
  ThreadPool pool({});
  auto a = NewParameter("a", Numbers(kPieces * kPieceElements, DType::kF32, 1));
  auto optimizer = *NewOptimizer({"watched", {}}, {a}, {}, {&pool, 1});
  std::thread step([&] {
    stepping = std::this_thread::get_id();
    EXPECT_TRUE(Step(*optimizer, {{a->id, a->parameter->Pin()->tensor}}).ok());
  });
  others_done.get_future().wait();
  EXPECT_EQ(a->parameter->version(), 1u);
  EXPECT_EQ(optimizer->stats().steps, 0u);
  released.set_value();
  step.join();
  EXPECT_EQ(a->parameter->version(), 2u);
}

}  // namespace
}  // namespace psd::optim
