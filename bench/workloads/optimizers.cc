// opt_<name>: one step of the functional optimizer over 16 million floats, on one core, from the
// old version to the new. Floor: as many streams through the same memory. opt_small: a step of Adam
// over 10,000 parameters of 100 floats. Floor: a step over one parameter of 1,000,000 floats.
// opt_threads: a step of Adam over 16 million floats, split between two threads in the way an owner
// does it. Floor: the same step on one thread, so the efficiency says how much faster two threads
// are.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/floors.h"
#include "bench/job.h"
#include "bench/stats.h"
#include "bench/workloads/cases.h"
#include "core/base/buffer.h"
#include "core/base/parallel_for.h"
#include "core/base/status.h"
#include "core/base/thread_pool.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/options/option_groups.h"
#include "core/optim/owner/step_sweep.h"
#include "kernels/optim/arrays.h"

namespace psd::bench {
namespace {

constexpr size_t kFloats = 16'000'000;
constexpr int kSteps = 5;
constexpr size_t kSmallFloats = 100;
constexpr int kSmallParameters = 10'000;
constexpr int kSmallSteps = 15;

// Parameters of one size with their versions, gradients and state, in the same kind of memory as in
// the store.
class Parameters {
 public:
  absl::Status Init(const optim::FunctionalOptimizer& optimizer, int count, size_t floats) {
    floats_ = floats;
    parameters_.resize(static_cast<size_t>(count));
    for (One& one : parameters_) {
      PSD_ASSIGN_OR_RETURN(one.current, Filled(0.5f));
      PSD_ASSIGN_OR_RETURN(one.next, Filled(0));
      PSD_ASSIGN_OR_RETURN(one.gradient, Filled(1e-3f));
      for (const optim::StateSlot& slot : optimizer.Slots(DType::kF32)) {
        PSD_ASSIGN_OR_RETURN(auto state, Filled(static_cast<float>(slot.initial)));
        one.state_data.push_back(state->data());
        one.state.push_back(std::move(state));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Step(const optim::FunctionalOptimizer& optimizer) {
    const std::vector<kernels::OptimArrays> all = Begin();
    kernels::OptimBatch batch;
    batch.step = step_;
    batch.arrays = all.data();
    batch.count = all.size();
    optimizer.Apply(/*stream=*/nullptr, batch);
    Publish();
    return absl::OkStatus();
  }

  // Steps all parameters as an owner does, with its helpers.
  absl::Status Step(const optim::FunctionPtr& optimizer, const Helpers& helpers) {
    optim::StepSweep sweep({&optimizer, 1}, {}, parameters_.size());
    for (const kernels::OptimArrays& arrays : Begin())
      sweep.Add(0, /*stream=*/nullptr, DType::kF32, step_, arrays);
    // There is no event to wait for, because all of the work is on the CPU.
    PSD_RETURN_IF_ERROR(sweep.Start(helpers).status());
    Publish();
    return absl::OkStatus();
  }
  // Runs as many streams through the first parameter as its step reads and writes.
  absl::Status FloorStep() {
    One& one = parameters_[0];
    const float* current = Floats(one.current->data());
    const float* gradient = Floats(one.gradient->data());
    float* next = Floats(one.next->data());
    if (one.state.empty()) {
      UpdateR2W1(current, gradient, next, floats_);
    } else if (one.state.size() == 1) {
      UpdateR3W2(current, gradient, Floats(one.state_data[0]), next, floats_);
    } else {
      UpdateR4W3(current, gradient, Floats(one.state_data[0]), Floats(one.state_data[1]), next,
                 floats_);
    }
    std::swap(one.current, one.next);
    return absl::OkStatus();
  }

 private:
  struct One {
    std::shared_ptr<Block> current, next, gradient;
    std::vector<std::shared_ptr<Block>> state;
    std::vector<std::byte*> state_data;
  };

  std::vector<kernels::OptimArrays> Begin() {
    std::vector<kernels::OptimArrays> all;
    all.reserve(parameters_.size());
    ++step_;
    for (One& one : parameters_) {
      kernels::OptimArrays& arrays = all.emplace_back();
      arrays.parameter = one.current->data();
      arrays.next = one.next->data();
      arrays.gradient = one.gradient->data();
      std::copy(one.state_data.begin(), one.state_data.end(), arrays.state);
      arrays.size = floats_;
    }
    return all;
  }
  void Publish() {
    for (One& one : parameters_) std::swap(one.current, one.next);
  }

  static float* Floats(std::byte* data) { return reinterpret_cast<float*>(data); }

  absl::StatusOr<std::shared_ptr<Block>> Filled(float value) {
    PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> block,
                         allocator_->Allocate(floats_ * sizeof(float)));
    std::fill_n(Floats(block->data()), floats_, value);
    return block;
  }

  const std::shared_ptr<Allocator> allocator_ = NewHeapAllocator();
  size_t floats_ = 0;
  std::vector<One> parameters_;
  int64_t step_ = 0;
};

class OptimizerWorkload : public Workload {
 public:
  explicit OptimizerWorkload(OptimizerSpec spec) : spec_(std::move(spec)) {}

  absl::Status Start(const Environment&) override {
    PSD_ASSIGN_OR_RETURN(optimizer_, optim::OptimizerRegistry::Builtin().Create(spec_));
    PSD_RETURN_IF_ERROR(parameters_.Init(*optimizer_, 1, kFloats));
    return parameters_.Step(*optimizer_);
  }
  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeEach(kSteps, [this] { return parameters_.Step(*optimizer_); });
  }
  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                         TimeEach(kSteps, [this] { return parameters_.FloorStep(); }));
    return Median(seconds);
  }

 private:
  const OptimizerSpec spec_;
  std::unique_ptr<optim::FunctionalOptimizer> optimizer_;
  Parameters parameters_;
};

class SmallOptimizerWorkload : public Workload {
 public:
  absl::Status Start(const Environment&) override {
    PSD_ASSIGN_OR_RETURN(optimizer_, optim::OptimizerRegistry::Builtin().Create(Adam{}));
    PSD_RETURN_IF_ERROR(many_.Init(*optimizer_, kSmallParameters, kSmallFloats));
    PSD_RETURN_IF_ERROR(one_.Init(*optimizer_, 1, kSmallFloats * size_t{kSmallParameters}));
    PSD_RETURN_IF_ERROR(one_.Step(*optimizer_));
    return many_.Step(*optimizer_);
  }
  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeEach(kSmallSteps, [this] { return many_.Step(*optimizer_); });
  }
  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                         TimeEach(kSmallSteps, [this] { return one_.Step(*optimizer_); }));
    return Median(seconds);
  }

 private:
  std::unique_ptr<optim::FunctionalOptimizer> optimizer_;
  Parameters many_, one_;
};

class ThreadedOptimizerWorkload : public Workload {
 public:
  absl::Status Start(const Environment&) override {
    PSD_ASSIGN_OR_RETURN(optimizer_, optim::OptimizerRegistry::Builtin().Create(Adam{}));
    PSD_RETURN_IF_ERROR(parameters_.Init(*optimizer_, 1, kFloats));
    return parameters_.Step(optimizer_, {&pool_, 1});
  }
  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeEach(kSteps, [this] { return parameters_.Step(optimizer_, {&pool_, 1}); });
  }
  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                         TimeEach(kSteps, [this] { return parameters_.Step(optimizer_, {}); }));
    return Median(seconds);
  }

 private:
  static ThreadPoolOptions OneThread() {
    ThreadPoolOptions options;
    options.threads = 1;
    return options;
  }

  ThreadPool pool_{OneThread()};
  optim::FunctionPtr optimizer_;
  Parameters parameters_;
};

Case OptimizerCase(const std::string& name, std::function<std::unique_ptr<Workload>()> make) {
  Case one;
  one.name = name;
  one.sends = false;
  one.unit = {"ms", 1e3};
  one.make = std::move(make);
  return one;
}

}  // namespace

std::vector<Case> OptimizerCases() {
  const std::pair<const char*, OptimizerSpec> dense[] = {
      {"opt_sgd", Sgd{}},         {"opt_adagrad", Adagrad{}}, {"opt_adam", Adam{}},
      {"opt_adamw", AdamW{}},     {"opt_adamax", Adamax{}},   {"opt_adadelta", Adadelta{}},
      {"opt_rmsprop", RmsProp{}}, {"opt_rprop", Rprop{}},
  };
  std::vector<Case> cases;
  for (const auto& [name, spec] : dense) {
    cases.push_back(
        OptimizerCase(name, [spec = spec] { return std::make_unique<OptimizerWorkload>(spec); }));
  }
  cases.push_back(
      OptimizerCase("opt_small", [] { return std::make_unique<SmallOptimizerWorkload>(); }));
  Case threads =
      OptimizerCase("opt_threads", [] { return std::make_unique<ThreadedOptimizerWorkload>(); });
  threads.has_peer = false;
  cases.push_back(std::move(threads));
  return cases;
}

}  // namespace psd::bench
