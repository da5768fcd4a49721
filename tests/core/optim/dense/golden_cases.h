#pragma once

// Steps of optimizers as another implementation took them, in the format of
// tests/golden/optim/make_golden.py, and their replay by ours.

#include <istream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/tensor/dtype.h"

namespace psd::optim {

struct GoldenStep {
  std::vector<double> gradient;  // empty: none
  std::vector<double> after;
};
struct GoldenCase {
  std::string line;
  OptimizerSpec spec;
  DType dtype = DType::kF32;
  std::vector<double> initial;
  std::vector<GoldenStep> steps;
};

std::vector<GoldenCase> ReadGoldenCases(std::istream& in);

// Takes the steps of `golden`; every parameter must agree to 1e-6 (f32) or 1e-12 (f64), relative
// to it or to 1 if that is more, and no gradient may change.
absl::Status Replay(const GoldenCase& golden);

}  // namespace psd::optim
