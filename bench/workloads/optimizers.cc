// opt_<name>: one step of the functional optimizer over 16 million floats, on one core, from the
// old version to the new. Floor: as many streams through memory.

#include <algorithm>
#include <utility>

#include "bench/floors.h"
#include "bench/job.h"
#include "bench/stats.h"
#include "bench/workloads/cases.h"
#include "core/base/buffer.h"
#include "core/optim/functional_optimizer.h"
#include "core/optim/optimizer_registry.h"

namespace psd::bench {
namespace {

constexpr size_t kFloats = 16'000'000;
constexpr int kSteps = 5;

class OptimizerWorkload : public Workload {
 public:
  explicit OptimizerWorkload(OptimizerSpec spec) : spec_(std::move(spec)) {}

  absl::Status Start(const Environment&) override {
    PSD_ASSIGN_OR_RETURN(optimizer_, optim::OptimizerRegistry::Builtin().Create(spec_));
    PSD_ASSIGN_OR_RETURN(parameter_, Filled(0.5f));
    PSD_ASSIGN_OR_RETURN(next_, Filled(0));
    PSD_ASSIGN_OR_RETURN(gradient_, Filled(1e-3f));
    for (const optim::StateSlot& slot : optimizer_->Slots(DType::kF32)) {
      PSD_ASSIGN_OR_RETURN(auto state, Filled(static_cast<float>(slot.initial)));
      state_.push_back(std::move(state));
      state_bytes_.push_back(state_.back()->data());
    }
    return Step();
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeEach(kSteps, [this] { return Step(); });
  }

  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                         TimeEach(kSteps, [this] { return FloorStep(); }));
    return Median(seconds);
  }

 private:
  // Mapped memory, as the store's.
  absl::StatusOr<std::shared_ptr<Block>> Filled(float value) {
    PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> block,
                         allocator_->Allocate(kFloats * sizeof(float)));
    std::fill_n(reinterpret_cast<float*>(block->data()), kFloats, value);
    return block;
  }

  absl::Status Step() {
    optim::StepArrays arrays;
    arrays.parameter = parameter_->data();
    arrays.next = next_->data();
    arrays.gradient = gradient_->data();
    arrays.state = absl::MakeConstSpan(state_bytes_);
    arrays.elements = static_cast<int64_t>(kFloats);
    arrays.step = ++step_;
    optimizer_->Apply(arrays);
    std::swap(parameter_, next_);
    return absl::OkStatus();
  }

  absl::Status FloorStep() {
    if (state_.empty()) {
      StreamR2W1(a_.data(), b_.data(), kFloats);
    } else {
      StreamR4W3(a_.data(), b_.data(), c_.data(), d_.data(), kFloats);
    }
    return absl::OkStatus();
  }

  const OptimizerSpec spec_;
  const std::shared_ptr<Allocator> allocator_ = NewHeapAllocator();
  std::unique_ptr<optim::FunctionalOptimizer> optimizer_;
  std::shared_ptr<Block> parameter_, next_, gradient_;
  std::vector<std::shared_ptr<Block>> state_;
  std::vector<std::byte*> state_bytes_;
  int64_t step_ = 0;
  MappedFloats a_{kFloats}, b_{kFloats}, c_{kFloats}, d_{kFloats};
};

Case OptimizerCase(const std::string& name, const OptimizerSpec& spec) {
  Case one;
  one.name = name;
  one.carrier = "none";
  one.unit = {"ms", 1e3};
  one.make = [spec] { return std::make_unique<OptimizerWorkload>(spec); };
  return one;
}

}  // namespace

std::vector<Case> OptimizerCases() {
  return {OptimizerCase("opt_sgd", Sgd{}), OptimizerCase("opt_adam", Adam{})};
}

}  // namespace psd::bench
