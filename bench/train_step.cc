#include "bench/train_step.h"

#include <cstddef>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
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

absl::StatusOr<LinearLoss> LinearLoss::Create(size_t tensors, int64_t elements) {
  LinearLoss loss;
  std::mt19937 random(11);
  for (size_t i = 0; i < tensors; ++i) {
    PSD_ASSIGN_OR_RETURN(Variable coefficients, Coefficients(elements, random));
    loss.coefficients_.push_back(std::move(coefficients));
  }
  return loss;
}

Variable LinearLoss::Of(const std::vector<Variable>& parameters) const {
  Variable sum = Sum(parameters[0] * coefficients_[0]);
  for (size_t i = 1; i < parameters.size(); ++i) sum = sum + Sum(parameters[i] * coefficients_[i]);
  return 0.5 * sum;
}

absl::StatusOr<std::unique_ptr<TrainStep>> TrainStep::Create(Worker& worker, const StepShape& shape,
                                                             const OptimizerSpec& spec,
                                                             const std::string& name) {
  std::unique_ptr<TrainStep> step(new TrainStep(worker));
  PSD_ASSIGN_OR_RETURN(
      std::vector<RRef> parameters,
      CreateParameters(worker, absl::StrCat(name, "/p"), shape.tensors, shape.elements));
  const auto share = static_cast<std::ptrdiff_t>(shape.tensors / shape.optimizers);
  for (int i = 0; i < shape.optimizers; ++i) {
    const auto first = parameters.begin() + i * share;
    const auto end = i + 1 < shape.optimizers ? first + share : parameters.end();
    PSD_ASSIGN_OR_RETURN(std::unique_ptr<DistributedOptimizer> optimizer,
                         DistributedOptimizer::Create(worker, absl::StrCat(name, "/optimizer", i),
                                                      spec, std::vector<RRef>(first, end)));
    step->optimizers_.push_back(std::move(optimizer));
  }
  if (shape.used > 0) parameters.resize(static_cast<size_t>(shape.used));
  PSD_ASSIGN_OR_RETURN(step->loss_, LinearLoss::Create(parameters.size(), shape.elements));
  step->parameters_ = std::move(parameters);
  return step;
}

absl::Status TrainStep::Run() {
  PSD_ASSIGN_OR_RETURN(Context context, worker_.NewContext());
  PSD_ASSIGN_OR_RETURN(const std::vector<Variable> values, worker_.ToHere(parameters_, context));
  PSD_RETURN_IF_ERROR(context.Backward({loss_.Of(values)}));
  for (const auto& optimizer : optimizers_) PSD_RETURN_IF_ERROR(optimizer->Step(context));
  return absl::OkStatus();
}

}  // namespace psd::bench
