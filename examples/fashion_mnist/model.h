#pragma once

// The model: a multilayer perceptron, 784-256-128-10, whose parameters live on the owners.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/psd.h"

namespace psd::examples {

// One parameter: "fashion/layer1/weight" of f32[256, 784], …
struct ParameterPlan {
  std::string name;
  Shape shape;
  double bound = 0;   // starts uniform in [-bound, bound)
  std::string owner;  // where it lives
};

// All parameters, layer by layer, weight before bias, spread over `owners` so that each holds about
// as many bytes as the next. Depends on nothing but the set of names: trainers need not talk.
// Requires: owners is not empty.
std::vector<ParameterPlan> PlanModel(std::vector<std::string> owners);

// References to all parameters, in the plan's order; what is not there yet is created.
absl::StatusOr<std::vector<RRef>> AttachModel(Worker& worker,
                                              const std::vector<ParameterPlan>& plan,
                                              uint64_t seed);

// f32[n, 784] -> logits f32[n, 10].
Variable Forward(const Variable& images, const std::vector<Variable>& parameters);

}  // namespace psd::examples
