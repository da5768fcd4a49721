#include "bench/train_step.h"

#include <random>
#include <utility>

#include "bench/job.h"

namespace psd::bench {
namespace {

absl::StatusOr<Variable> Coefficients(int64_t elements, std::mt19937& random) {
  PSD_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Empty({elements}, DType::kF32));
  std::uniform_real_distribution<float> uniform(-1e-3f, 1e-3f);
  auto* values = tensor.mutable_data<float>();
  for (int64_t i = 0; i < elements; ++i) values[i] = uniform(random);
  return Variable(std::move(tensor));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainStep>> TrainStep::Create(Worker& worker, const StepShape& shape,
                                                             const OptimizerSpec& spec) {
  std::unique_ptr<TrainStep> step(new TrainStep(worker));
  PSD_ASSIGN_OR_RETURN(step->parameters_,
                       CreateParameters(worker, "step/p", shape.tensors, shape.elements));
  std::mt19937 random(11);
  for (int i = 0; i < shape.tensors; ++i) {
    PSD_ASSIGN_OR_RETURN(Variable coefficients, Coefficients(shape.elements, random));
    step->coefficients_.push_back(std::move(coefficients));
  }
  PSD_ASSIGN_OR_RETURN(step->optimizer_, DistributedOptimizer::Create(worker, "step/optimizer",
                                                                      spec, step->parameters_));
  return step;
}

absl::Status TrainStep::Run() {
  PSD_ASSIGN_OR_RETURN(Context context, worker_.NewContext());
  PSD_ASSIGN_OR_RETURN(const std::vector<Variable> values, worker_.ToHere(parameters_, context));
  Variable sum = Sum(values[0] * coefficients_[0]);
  for (size_t i = 1; i < values.size(); ++i) sum = sum + Sum(values[i] * coefficients_[i]);
  const Variable loss = 0.5 * sum;
  PSD_RETURN_IF_ERROR(context.Backward({loss}));
  return optimizer_->Step(context);
}

}  // namespace psd::bench
