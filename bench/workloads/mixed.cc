// calls_mixed: four trainers have 1,000 empty calls and 20 heavy calls outstanding each; measures
// the time until all calls are answered. Floor: the math of the heavy calls on all cores.

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/floors.h"
#include "bench/job.h"
#include "bench/workloads/cases.h"
#include "core/base/collect.h"

namespace psd::bench {
namespace {

constexpr int kTrainers = 4;
constexpr int kLightCalls = 1000;  // of each trainer
constexpr int kHeavyCalls = 20;
constexpr int kSide = 192;
constexpr int kProducts = 8;  // of matrices, in a heavy call

absl::StatusOr<Program> Heavy() {
  ProgramBuilder builder;
  const ProgramBuilder::Ref matrix = builder.Input();
  ProgramBuilder::Ref x = matrix;
  for (int i = 0; i < kProducts; ++i) x = builder.Call("matmul", {x, matrix});
  return builder.Build({builder.Call("sum", {x})});
}

class CallsMixed : public Workload {
 public:
  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment));
    for (int i = 0; i < kTrainers; ++i) {
      PSD_ASSIGN_OR_RETURN(auto trainer, Attach(absl::StrCat("trainer", i), job_->address()));
      trainers_.push_back(std::move(trainer));
    }
    PSD_ASSIGN_OR_RETURN(Program heavy, Heavy());
    heavy_ = std::make_unique<Function>(std::move(heavy));
    PSD_ASSIGN_OR_RETURN(Tensor matrix, Tensor::Empty({kSide, kSide}, DType::kF32));
    std::fill_n(matrix.mutable_data<float>(), matrix.NumElements(), 1.0f / kSide);
    matrix_ = Variable(std::move(matrix));
    return RunPsd().status();
  }

  // Runs every trainer in its own thread. If a call fails, the case fails.
  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeEach(1, [this] {
      std::vector<absl::Status> ended(trainers_.size());
      std::vector<std::thread> threads;
      for (size_t i = 0; i < trainers_.size(); ++i) {
        threads.emplace_back([this, &ended, i] { ended[i] = CallAll(*trainers_[i]); });
      }
      for (std::thread& thread : threads) thread.join();
      absl::Status first;
      for (const absl::Status& status : ended) first.Update(status);
      return first;
    });
  }

  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds, TimeEach(1, [this] {
                           Variable x = matrix_;
                           for (int i = 0; i < kProducts; ++i) x = Matmul(x, matrix_);
                           x = Sum(x);
                           Consume(x.tensor().data<float>()[0]);
                           return x.status();
                         }));
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    return seconds[0] * (kTrainers * kHeavyCalls) / cores;
  }

 private:
  absl::Status CallAll(Worker& trainer) {
    std::vector<Future<Values>> calls;
    for (int i = 0; i < kLightCalls; ++i) {
      if (i % (kLightCalls / kHeavyCalls) == 0) {
        calls.push_back(trainer.RpcAsync(kOwner, *heavy_, {matrix_}));
      }
      calls.push_back(trainer.RpcAsync(kOwner, light_, {}));
    }
    return WaitAll(calls).status();
  }

  std::unique_ptr<Job> job_;
  std::vector<std::unique_ptr<Worker>> trainers_;
  const Function light_{Program{}};
  std::unique_ptr<Function> heavy_;
  Variable matrix_;
};

}  // namespace

std::vector<Case> MixedCases() {
  Case mixed;
  mixed.name = "calls_mixed";
  mixed.unit = {"ms", 1e3};
  mixed.has_peer = false;
  mixed.make = [] { return std::make_unique<CallsMixed>(); };
  return {mixed};
}

}  // namespace psd::bench
