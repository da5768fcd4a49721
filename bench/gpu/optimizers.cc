// gpu_opt_<name>: one step of the functional optimizer over 64 million floats of a device, from the
// old version to the new. gpu_opt_small: a step of Adam over 10,000 parameters of 100 floats, in
// one launch. Floor: a copy within the device that reads and writes as many bytes.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/cases.h"
#include "bench/gpu/device_case.h"
#include "bench/gpu/on_device.h"
#include "client/psd.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_registry.h"
#include "kernels/optim/arrays.h"

namespace psd::bench {
namespace {

// How many parameters there are, of how many floats each.
struct Parameters {
  size_t count = 1;
  size_t floats = 0;

  // Each parameter starts at a multiple of this, as the kernels want it.
  size_t stride() const {
    constexpr size_t kFloats = kernels::kOptimAlignment / sizeof(float);
    return (floats + kFloats - 1) / kFloats * kFloats;
  }
  Shape shape() const { return {static_cast<int64_t>(count * stride())}; }
};

// The arrays of all parameters, on a device or, if that is null, on the host. Those of one kind lie
// in one tensor.
class Arrays {
 public:
  absl::Status Init(Device* device, const optim::FunctionalOptimizer& optimizer,
                    const Parameters& parameters) {
    stream_ = device == nullptr ? nullptr : &device->default_stream();
    parameters_ = parameters;
    PSD_ASSIGN_OR_RETURN(current_, Pattern(device, parameters.shape()));
    PSD_ASSIGN_OR_RETURN(next_, Pattern(device, parameters.shape(), -1));
    PSD_ASSIGN_OR_RETURN(gradient_, Pattern(device, parameters.shape(), 0.01f));
    Allocator* const memory = device == nullptr ? nullptr : &device->memory();
    for (const optim::StateSlot& slot : optimizer.Slots(DType::kF32)) {
      PSD_ASSIGN_OR_RETURN(state_.emplace_back(),
                           Tensor::Full(parameters.shape(), DType::kF32, slot.initial, memory));
    }
    return absl::OkStatus();
  }

  // Adds a step of all parameters, as one batch.
  void Step(const optim::FunctionalOptimizer& optimizer) {
    std::vector<kernels::OptimArrays> all(parameters_.count);
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t first = i * parameters_.stride();
      all[i].parameter = FloatAt(current_, first);
      all[i].next = MutableFloatAt(next_, first);
      all[i].gradient = FloatAt(gradient_, first);
      for (size_t s = 0; s < state_.size(); ++s) all[i].state[s] = MutableFloatAt(state_[s], first);
      all[i].size = parameters_.floats;
    }
    kernels::OptimBatch batch;
    batch.step = ++step_;
    batch.arrays = all.data();
    batch.count = all.size();
    optimizer.Apply(stream_, batch);
    std::swap(current_, next_);
  }

  // The bytes that a step reads and writes: two arrays and the state, and one and the state.
  size_t traffic_bytes() const {
    return parameters_.count * parameters_.floats * sizeof(float) * (3 + 2 * state_.size());
  }
  // Returns elements of the newest version of parameter number `i`, from its element `first` on.
  absl::StatusOr<std::vector<float>> Newest(size_t i, size_t first, size_t count) const {
    return ReadFloats(current_, i * parameters_.stride() + first, count);
  }

 private:
  Stream* stream_ = nullptr;
  Parameters parameters_;
  Tensor current_, next_, gradient_;
  std::vector<Tensor> state_;
  int64_t step_ = 0;
};

class OptimizerWorkload : public CopyBoundWorkload {
 public:
  // `full` is for GPUs, and `tiny` for emulated devices.
  OptimizerWorkload(OptimizerSpec spec, const Parameters& full, const Parameters& tiny)
      : spec_(std::move(spec)), full_(full), tiny_(tiny) {}

 protected:
  absl::Status Prepare() override {
    parameters_ = SizeOn(device(), full_, tiny_);
    PSD_ASSIGN_OR_RETURN(optimizer_, optim::OptimizerRegistry::Builtin().Create(spec_));
    PSD_RETURN_IF_ERROR(optimizer_->CheckDevice(&device()));
    return arrays_.Init(&device(), *optimizer_, parameters_);
  }
  size_t TrafficBytes() const override { return arrays_.traffic_bytes(); }
  absl::Status Add() override {
    arrays_.Step(*optimizer_);
    return absl::OkStatus();
  }
  int OperationsToCheck() const override { return kCheckedSteps; }
  // Compares the first and the last parameter with steps of the CPU.
  absl::Status Check() const override {
    const size_t count = std::min(parameters_.floats, kCheckedFloats);
    for (const size_t i : {size_t{0}, parameters_.count - 1}) {
      for (const size_t first : {size_t{0}, parameters_.floats - count}) {
        PSD_ASSIGN_OR_RETURN(const std::vector<float> got, arrays_.Newest(i, first, count));
        PSD_RETURN_IF_ERROR(CheckPart(i * parameters_.stride() + first, got));
      }
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int kCheckedSteps = 2;
  static constexpr size_t kCheckedFloats = 4096;  // of a parameter, at its start and at its end

  // `got` are the elements from `offset` on, which had the pattern before the first step.
  absl::Status CheckPart(size_t offset, const std::vector<float>& got) const {
    const size_t skipped = offset % kPatternPeriod;
    Arrays here;
    PSD_RETURN_IF_ERROR(here.Init(nullptr, *optimizer_, {1, skipped + got.size()}));
    for (int i = 0; i < kCheckedSteps; ++i) here.Step(*optimizer_);
    PSD_ASSIGN_OR_RETURN(const std::vector<float> want, here.Newest(0, skipped, got.size()));
    return CheckNear(spec_.type, got, want);
  }

  const OptimizerSpec spec_;
  const Parameters full_, tiny_;
  Parameters parameters_;
  std::unique_ptr<optim::FunctionalOptimizer> optimizer_;
  Arrays arrays_;
};

Case OptimizerCase(const std::string& name, const OptimizerSpec& spec, const Parameters& full,
                   const Parameters& tiny) {
  return DeviceCase(name, [=] { return std::make_unique<OptimizerWorkload>(spec, full, tiny); });
}

}  // namespace

std::vector<Case> GpuOptimizerCases() {
  const std::pair<const char*, OptimizerSpec> dense[] = {
      {"gpu_opt_sgd", Sgd{}},         {"gpu_opt_adagrad", Adagrad{}},
      {"gpu_opt_adam", Adam{}},       {"gpu_opt_adamw", AdamW{}},
      {"gpu_opt_adamax", Adamax{}},   {"gpu_opt_adadelta", Adadelta{}},
      {"gpu_opt_rmsprop", RmsProp{}}, {"gpu_opt_rprop", Rprop{}},
  };
  std::vector<Case> cases;
  for (const auto& [name, spec] : dense)
    cases.push_back(OptimizerCase(name, spec, {1, size_t{64} << 20}, {1, 5001}));
  cases.push_back(OptimizerCase("gpu_opt_small", Adam{}, {10'000, 100}, {30, 100}));
  return cases;
}

}  // namespace psd::bench
