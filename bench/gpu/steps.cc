// gpu_step_adam: a step of a trainer that hosts the parameters itself, 16 tensors of 16 million
// floats on a device: pull, loss = sum of p * c (every tensor has its own c), backward, step. No
// elements are copied. Floor: the same operators and the kernel of Adam alone, added to the device
// one step after the other without waiting.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "bench/gpu/cases.h"
#include "bench/gpu/device_case.h"
#include "bench/gpu/device_job.h"
#include "bench/gpu/on_device.h"
#include "bench/job.h"
#include "core/autograd/engine.h"
#include "core/autograd/node.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_registry.h"
#include "kernels/optim/arrays.h"

namespace psd::bench {
namespace {

constexpr int kTensors = 16;
constexpr int kCheckedSteps = 2;
constexpr size_t kCheckedFloats = 300;  // of each parameter

// The sum of p * c over all parameters. It is taken axis by axis, because a device sums each result
// on one thread.
class FoldedLoss {
 public:
  static absl::StatusOr<FoldedLoss> Create(Device& device, const Shape& shape) {
    FoldedLoss loss;
    for (int i = 0; i < kTensors; ++i) {
      PSD_ASSIGN_OR_RETURN(Tensor c, Pattern(&device, shape, 1e-3f * static_cast<float>(1 + i)));
      loss.coefficients_.emplace_back(std::move(c));
    }
    return loss;
  }
  Variable Of(const std::vector<Variable>& parameters) const {
    Variable sum;
    for (size_t i = 0; i < parameters.size(); ++i) {
      Variable one = parameters[i] * coefficients_[i];
      while (one.ok() && one.shape().rank() > 0) one = Sum(one, /*axis=*/0);
      sum = i == 0 ? one : sum + one;
    }
    return sum;
  }

 private:
  std::vector<Variable> coefficients_;
};

// Keeps the gradients of leaves.
class KeptGradients : public GradientSink {
 public:
  absl::Status Accumulate(const LeafInfo& leaf, Tensor gradient) override {
    gradients_[leaf.key] = std::move(gradient);
    return absl::OkStatus();
  }
  // Returns an undefined tensor if there is none.
  Tensor Of(const Variable& leaf) const {
    const auto found = gradients_.find(leaf.key());
    return found == gradients_.end() ? Tensor() : found->second;
  }

 private:
  absl::flat_hash_map<GlobalId, Tensor> gradients_;
};

// The same training without a worker: the floor.
class KernelSteps {
 public:
  // Starts from copies of the parameters.
  absl::Status Init(Device& device, const OptimizerSpec& spec,
                    const std::vector<Variable>& parameters) {
    device_ = &device;
    PSD_ASSIGN_OR_RETURN(optimizer_, optim::OptimizerRegistry::Builtin().Create(spec));
    for (const Variable& parameter : parameters) {
      One& one = parameters_.emplace_back();
      PSD_ASSIGN_OR_RETURN(one.current, parameter.tensor().Clone());
      PSD_ASSIGN_OR_RETURN(one.next, Tensor::EmptyLike(one.current));
      for (const optim::StateSlot& slot : optimizer_->Slots(DType::kF32)) {
        PSD_ASSIGN_OR_RETURN(
            one.state.emplace_back(),
            Tensor::Full(parameter.shape(), DType::kF32, slot.initial, &device.memory()));
      }
    }
    return absl::OkStatus();
  }

  // Adds the work of one step.
  absl::Status Add(const FoldedLoss& loss) {
    std::vector<Variable> leaves;
    for (const One& one : parameters_) leaves.emplace_back(one.current, /*requires_grad=*/true);
    KeptGradients gradients;
    PSD_RETURN_IF_ERROR(Backward({loss.Of(leaves)}, gradients));
    std::vector<kernels::OptimArrays> all;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Tensor gradient = gradients.Of(leaves[i]);
      if (!gradient.defined()) return absl::InternalError("a parameter has no gradient");
      all.push_back(parameters_[i].Arrays(gradient));
    }
    kernels::OptimBatch batch;
    batch.step = ++step_;
    batch.arrays = all.data();
    batch.count = all.size();
    optimizer_->Apply(&device_->default_stream(), batch);
    for (One& one : parameters_) std::swap(one.current, one.next);
    return absl::OkStatus();
  }

  const Tensor& Newest(size_t i) const { return parameters_[i].current; }

 private:
  struct One {
    Tensor current, next;
    std::vector<Tensor> state;

    kernels::OptimArrays Arrays(const Tensor& gradient) {
      kernels::OptimArrays arrays;
      arrays.parameter = current.address();
      arrays.next = next.mutable_address();
      arrays.gradient = gradient.address();
      for (size_t s = 0; s < state.size(); ++s) arrays.state[s] = state[s].mutable_address();
      arrays.size = static_cast<size_t>(current.NumElements());
      return arrays;
    }
  };

  Device* device_ = nullptr;
  std::unique_ptr<optim::FunctionalOptimizer> optimizer_;
  std::vector<One> parameters_;
  int64_t step_ = 0;
};

class StepWorkload : public Workload {
 public:
  absl::Status Start(const Environment& environment) override {
    device_ = environment.devices[0];
    const Shape shape = IsEmulated(*device_) ? Shape{3, 4, 5, 6} : Shape{64, 64, 64, 64};
    PSD_ASSIGN_OR_RETURN(loss_, FoldedLoss::Create(*device_, shape));
    PSD_ASSIGN_OR_RETURN(worker_, StartOnDevices(environment, kWorker));
    for (int i = 0; i < kTensors; ++i) {
      PSD_ASSIGN_OR_RETURN(
          RRef parameter,
          CreateOn(*worker_, kWorker, absl::StrCat("p", i),
                   Uniform(shape, -0.1, 0.1, static_cast<uint64_t>(i)), device_->name()));
      parameters_.push_back(std::move(parameter));
    }
    PSD_ASSIGN_OR_RETURN(optimizer_, DistributedOptimizer::Create(*worker_, Adam{}, parameters_));
    PSD_RETURN_IF_ERROR(InitFloor());
    PSD_ASSIGN_OR_RETURN(const std::vector<std::vector<float>> before, FirstElements());
    for (int i = 0; i < kCheckedSteps; ++i) {
      PSD_RETURN_IF_ERROR(Step());
      PSD_RETURN_IF_ERROR(floor_.Add(loss_));
    }
    return Check(before);
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeEach(Steps(), [this] { return Step(); });
  }
  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const double seconds,
                         TimeOnDevice(*device_, Steps(), [this] { return floor_.Add(loss_); }));
    return seconds;
  }

 private:
  static constexpr char kWorker[] = "bench";

  int Steps() const { return SizeOn(*device_, 10, 2); }

  absl::Status InitFloor() {
    PSD_ASSIGN_OR_RETURN(const std::vector<Variable> parameters,
                         FetchTo(*worker_, parameters_, device_->name()));
    return floor_.Init(*device_, Adam{}, parameters);
  }
  absl::Status Step() {
    PSD_ASSIGN_OR_RETURN(Context context, worker_->NewContext());
    PSD_ASSIGN_OR_RETURN(const std::vector<Variable> parameters,
                         FetchTo(*worker_, parameters_, device_->name(), &context));
    PSD_RETURN_IF_ERROR(context.Backward({loss_.Of(parameters)}));
    return optimizer_->Step(context);
  }
  // Returns the first elements of all parameters.
  absl::StatusOr<std::vector<std::vector<float>>> FirstElements() {
    PSD_ASSIGN_OR_RETURN(const std::vector<Variable> parameters,
                         FetchTo(*worker_, parameters_, device_->name()));
    std::vector<std::vector<float>> all;
    for (const Variable& parameter : parameters) {
      PSD_ASSIGN_OR_RETURN(all.emplace_back(), ReadFloats(parameter.tensor(), 0, kCheckedFloats));
    }
    return all;
  }
  // The gradients are the same in each step, so Adam has moved each element by its rate in each.
  absl::Status Check(const std::vector<std::vector<float>>& before) {
    PSD_ASSIGN_OR_RETURN(const std::vector<std::vector<float>> now, FirstElements());
    for (size_t i = 0; i < now.size(); ++i) {
      const std::string what = absl::StrCat("parameter ", i);
      std::vector<float> want = before[i];
      for (float& x : want) x -= static_cast<float>(kCheckedSteps * Adam{}.lr);
      PSD_RETURN_IF_ERROR(CheckNear(what, now[i], want));
      PSD_ASSIGN_OR_RETURN(const std::vector<float> floor,
                           ReadFloats(floor_.Newest(i), 0, want.size()));
      PSD_RETURN_IF_ERROR(CheckNear(absl::StrCat(what, " of the floor"), floor, want));
    }
    return absl::OkStatus();
  }

  std::shared_ptr<Device> device_;
  FoldedLoss loss_;
  std::unique_ptr<Worker> worker_;
  std::vector<RRef> parameters_;
  std::unique_ptr<DistributedOptimizer> optimizer_;  // ends before its worker
  KernelSteps floor_;
};

}  // namespace

std::vector<Case> GpuStepCases() {
  return {DeviceCase("gpu_step_adam", [] { return std::make_unique<StepWorkload>(); })};
}

}  // namespace psd::bench
