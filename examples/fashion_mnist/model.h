#pragma once

// The model: a multilayer perceptron, 784-256-128-10, whose parameters live on the owners.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/psd.h"

namespace psd::examples {

// One parameter, for example "fashion/layer1/weight" of f32[256, 784].
struct ParameterPlan {
  std::string name;
  Shape shape;
  double bound = 0;   // its initial elements are uniform in [-bound, bound)
  std::string owner;  // the owner on which it lives
};

// Returns all parameters, layer by layer, weight before bias. They are spread over `owners` so that
// all hold about the same number of bytes. The plan depends only on the set of names, so trainers
// need not agree on it. Requires: owners is not empty.
std::vector<ParameterPlan> PlanModel(std::vector<std::string> owners);

// Returns references to all parameters in the plan's order, and creates those that do not exist
// yet, on this device of their owners.
absl::StatusOr<std::vector<RRef>> AttachModel(Worker& worker,
                                              const std::vector<ParameterPlan>& plan, uint64_t seed,
                                              const std::string& device = "cpu");

// Computes logits f32[n, 10] from images f32[n, 784].
Variable Forward(const Variable& images, const std::vector<Variable>& parameters);

}  // namespace psd::examples
