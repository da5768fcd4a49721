#include "examples/fashion_mnist/model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace psd::examples {
namespace {

constexpr int64_t kWidths[] = {784, 256, 128, 10};
constexpr int kLayers = 3;

// Assigns the parameters, largest first, to the owner that has the fewest bytes so far.
void SpreadOver(const std::vector<std::string>& owners, std::vector<ParameterPlan>* plan) {
  std::vector<size_t> order(plan->size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [plan](size_t a, size_t b) {
    return (*plan)[a].shape.NumElements() > (*plan)[b].shape.NumElements();
  });
  std::vector<int64_t> load(owners.size(), 0);
  for (size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end()) - load.begin();
    load[static_cast<size_t>(least)] += (*plan)[i].shape.NumElements();
    (*plan)[i].owner = owners[static_cast<size_t>(least)];
  }
}

}  // namespace

std::vector<ParameterPlan> PlanModel(std::vector<std::string> owners) {
  std::sort(owners.begin(), owners.end());
  std::vector<ParameterPlan> plan;
  for (int layer = 0; layer < kLayers; ++layer) {
    const int64_t in = kWidths[layer];
    const int64_t out = kWidths[layer + 1];
    const double bound = 1 / std::sqrt(static_cast<double>(in));
    const std::string name = absl::StrCat("fashion/layer", layer + 1);
    plan.push_back({absl::StrCat(name, "/weight"), Shape{out, in}, bound, ""});
    plan.push_back({absl::StrCat(name, "/bias"), Shape{out}, bound, ""});
  }
  SpreadOver(owners, &plan);
  return plan;
}

absl::StatusOr<std::vector<RRef>> AttachModel(Worker& worker,
                                              const std::vector<ParameterPlan>& plan, uint64_t seed,
                                              const std::string& device) {
  std::vector<RRef> parameters;
  for (const ParameterPlan& parameter : plan) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = device;
    const Program create = Uniform(parameter.shape, -parameter.bound, parameter.bound, ++seed);
    PSD_ASSIGN_OR_RETURN(RRef rref,
                         worker.GetOrCreate(parameter.owner, parameter.name, create, options));
    parameters.push_back(std::move(rref));
  }
  return parameters;
}

Variable Forward(const Variable& images, const std::vector<Variable>& parameters) {
  Variable x = images;
  for (size_t layer = 0; layer < kLayers; ++layer) {
    if (layer > 0) x = Relu(x);
    x = Linear(x, parameters[2 * layer], parameters[2 * layer + 1]);
  }
  return x;
}

}  // namespace psd::examples
