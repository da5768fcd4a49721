// step_sgd, step_adam: a train step over 16 tensors of a million floats. Floor: the trainer's math
// and the optimizer, each one pass over memory; nothing is sent.
// step_sgd_unfused: step_sgd. Floor: the trainer's math by one operator at a time.
// step_small: the same over 1,000 tensors of 256 floats. Floor: three empty calls, and the math.
// step_small_carried: the same step. Floor: three calls that carry its bytes, and the math.
// step_halves: the same step with two optimizers, one after the other, over 500 of the tensors
// each. Floor: the same with one optimizer over all. step_one: a step that uses one of the 10,000
// tensors of its optimizer. Floor: the same step with an optimizer that has only this tensor.

#include <utility>

#include "bench/floors.h"
#include "bench/job.h"
#include "bench/stats.h"
#include "bench/train_step.h"
#include "bench/wire_floors.h"
#include "bench/workloads/cases.h"

namespace psd::bench {
namespace {

constexpr size_t kDenseFloats = 16'000'000;
constexpr size_t kSmallFloats = 256'000;

class StepWorkload : public Workload {
 public:
  StepWorkload(const StepShape& shape, OptimizerSpec spec, int steps)
      : shape_(shape), spec_(std::move(spec)), steps_(steps) {}

  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment));
    PSD_ASSIGN_OR_RETURN(step_, TrainStep::Create(job_->worker(), shape_, spec_));
    for (int i = 0; i < 2; ++i) PSD_RETURN_IF_ERROR(step_->Run());
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeEach(steps_, [this] { return step_->Run(); });
  }

  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                         TimeEach(steps_, [this] { return FloorStep(); }));
    return Median(seconds);
  }

 protected:
  virtual absl::Status FloorStep() = 0;
  const OptimizerSpec& spec() const { return spec_; }

 private:
  const StepShape shape_;
  const OptimizerSpec spec_;
  const int steps_;  // in a block
  std::unique_ptr<Job> job_;
  std::unique_ptr<TrainStep> step_;  // ends before its job
};

class DenseStep : public StepWorkload {
 public:
  // If not `fused`, the floor's math takes one operator at a time, tensor by tensor.
  explicit DenseStep(OptimizerSpec spec, bool fused = true)
      : StepWorkload(kDenseStep, std::move(spec), 4), fused_(fused) {}

 protected:
  absl::Status FloorStep() override {
    if (fused_) {
      Consume(StepMath(a_.data(), b_.data(), d_.data(), kDenseFloats));
    } else {
      for (size_t at = 0; at < kDenseFloats; at += kTensorFloats)
        Consume(StepMathUnfused(a_.data() + at, b_.data() + at, product_.data(), d_.data() + at,
                                kTensorFloats));
    }
    if (spec().type == "sgd") {
      StreamR2W1(a_.data(), d_.data(), kDenseFloats);
    } else {
      StreamR4W3(a_.data(), d_.data(), c_.data(), b_.data(), kDenseFloats);
    }
    return absl::OkStatus();
  }

 private:
  static constexpr auto kTensorFloats = static_cast<size_t>(kDenseStep.elements);

  const bool fused_;
  MappedFloats a_{kDenseFloats}, b_{kDenseFloats}, c_{kDenseFloats}, d_{kDenseFloats};
  MappedFloats product_{kTensorFloats};
};

class SmallStep : public StepWorkload {
 public:
  // If `carried`, the floor carries the bytes too.
  explicit SmallStep(bool carried) : StepWorkload(kSmallStep, Sgd{}, 40), carried_(carried) {}

  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(floor_, EchoFloor::Start(environment));
    return StepWorkload::Start(environment);
  }

 protected:
  absl::Status FloorStep() override {
    const size_t bytes = carried_ ? kSmallFloats * sizeof(float) : 0;
    PSD_RETURN_IF_ERROR(floor_->Carry(0, bytes));  // pull
    Consume(StepMath(a_.data(), b_.data(), c_.data(), kSmallFloats));
    PSD_RETURN_IF_ERROR(floor_->Carry(bytes, 0));  // backward
    StreamR2W1(a_.data(), c_.data(), kSmallFloats);
    return floor_->Carry(0, 0);  // step
  }

 private:
  const bool carried_;
  std::unique_ptr<EchoFloor> floor_;
  MappedFloats a_{kSmallFloats}, b_{kSmallFloats}, c_{kSmallFloats};
};

// Compares two ways to make a step, both of them psd's.
class TwoSteps : public Workload {
 public:
  TwoSteps(const StepShape& shape, const StepShape& floor) : shape_(shape), floor_shape_(floor) {}

  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment));
    PSD_ASSIGN_OR_RETURN(step_, TrainStep::Create(job_->worker(), shape_, Sgd{}));
    PSD_ASSIGN_OR_RETURN(floor_, TrainStep::Create(job_->worker(), floor_shape_, Sgd{}, "floor"));
    for (TrainStep* each : {step_.get(), floor_.get()}) PSD_RETURN_IF_ERROR(each->Run());
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeEach(kSteps, [this] { return step_->Run(); });
  }

  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                         TimeEach(kSteps, [this] { return floor_->Run(); }));
    return Median(seconds);
  }

 private:
  static constexpr int kSteps = 40;  // in a block

  const StepShape shape_;
  const StepShape floor_shape_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<TrainStep> step_;  // both end before their job
  std::unique_ptr<TrainStep> floor_;
};

}  // namespace

std::vector<Case> StepCases() {
  Case sgd;
  sgd.name = "step_sgd";
  sgd.unit = {"ms", 1e3};
  sgd.make = [] { return std::make_unique<DenseStep>(Sgd{}); };
  Case unfused = sgd;
  unfused.name = "step_sgd_unfused";
  unfused.has_peer = false;
  unfused.make = [] { return std::make_unique<DenseStep>(Sgd{}, /*fused=*/false); };
  Case adam = sgd;
  adam.name = "step_adam";
  adam.make = [] { return std::make_unique<DenseStep>(Adam{}); };
  Case small = sgd;
  small.name = "step_small";
  small.make = [] { return std::make_unique<SmallStep>(/*carried=*/false); };
  Case carried = small;
  carried.name = "step_small_carried";
  carried.has_peer = false;
  carried.make = [] { return std::make_unique<SmallStep>(/*carried=*/true); };
  Case halves = carried;
  halves.name = "step_halves";
  halves.make = [] {
    StepShape two = kSmallStep;
    two.optimizers = 2;
    return std::make_unique<TwoSteps>(two, kSmallStep);
  };
  Case one = carried;
  one.name = "step_one";
  one.make = [] {
    return std::make_unique<TwoSteps>(StepShape{10'000, 256, 1, 1}, StepShape{1, 256});
  };
  return {sgd, unfused, adam, small, carried, halves, one};
}

}  // namespace psd::bench
