#include "examples/batch_updating_ps/trainer.h"

#include <random>
#include <tuple>
#include <utility>

#include "core/base/status.h"

namespace psd::examples {
namespace {

absl::StatusOr<std::vector<Tensor>> CallModel(Worker& worker, const std::string& server,
                                              const std::string& function,
                                              const std::vector<Tensor>& gradients) {
  const Values arguments(gradients.begin(), gradients.end());
  PSD_ASSIGN_OR_RETURN(const Values results,
                       worker.RpcSync(server, Function::Registered(function), arguments));
  PSD_ASSIGN_OR_RETURN(auto model, (ReadValues<Tensor, Tensor>(results)));
  return std::vector<Tensor>{std::get<0>(model), std::get<1>(model)};
}

}  // namespace

std::vector<Tensor> InitialModel() {
  return {Tensor::Of<float>({1, 2}, {0, 0}), Tensor::Of<float>({1}, {0})};
}

absl::StatusOr<Points> MakePoints(int64_t count, uint64_t seed) {
  Points points;
  PSD_ASSIGN_OR_RETURN(points.x, Tensor::Empty({count, 2}, DType::kF32));
  PSD_ASSIGN_OR_RETURN(points.y, Tensor::Empty({count, 1}, DType::kF32));
  std::mt19937_64 random(seed);
  const auto uniform = [&random] { return static_cast<float>(random() >> 40) * 0x1p-23f - 1; };
  for (int64_t i = 0; i < count; ++i) {
    const float a = uniform(), b = uniform();
    points.x.mutable_data<float>()[2 * i] = a;
    points.x.mutable_data<float>()[2 * i + 1] = b;
    points.y.mutable_data<float>()[i] = 3 * a - 2 * b + 1;
  }
  return points;
}

absl::StatusOr<LossAndGradients> Differentiate(Worker& worker, const std::vector<Tensor>& model,
                                               const Points& points) {
  const Variable weight(model[0], /*requires_grad=*/true), bias(model[1], /*requires_grad=*/true);
  const Variable loss = Mse(Linear(points.x, weight, bias), points.y);
  // Nothing was called in this context, so its backward pass stays on this trainer.
  PSD_ASSIGN_OR_RETURN(Context context, worker.NewContext());
  PSD_RETURN_IF_ERROR(context.Backward({loss}));
  LossAndGradients result;
  result.loss = loss.tensor().data<float>()[0];
  for (const Variable& leaf : {weight, bias}) {
    PSD_ASSIGN_OR_RETURN(Tensor gradient, context.Gradient(leaf));
    result.gradients.push_back(std::move(gradient));
  }
  return result;
}

absl::StatusOr<std::vector<double>> TrainOn(Worker& worker, const std::string& server,
                                            const Points& points, int steps) {
  PSD_ASSIGN_OR_RETURN(std::vector<Tensor> model, CallModel(worker, server, "model.fetch", {}));
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    PSD_ASSIGN_OR_RETURN(const LossAndGradients mine, Differentiate(worker, model, points));
    losses.push_back(mine.loss);
    PSD_ASSIGN_OR_RETURN(model,
                         CallModel(worker, server, "model.update_and_fetch", mine.gradients));
  }
  return losses;
}

}  // namespace psd::examples
