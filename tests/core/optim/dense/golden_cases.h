#pragma once

// Steps of optimizers as another implementation took them, in the format of
// tests/golden/optim/make_golden.py and make_golden_rows.py, and their replay by ours.

#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/tensor/dtype.h"

namespace psd::optim {

struct GoldenStep {
  std::vector<double> rows;      // of a sparse gradient
  std::vector<double> gradient;  // empty: none
  std::vector<double> after;
};
struct GoldenCase {
  std::string line;
  OptimizerSpec spec;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<double> initial;
  std::vector<GoldenStep> steps;
};

std::vector<GoldenCase> ReadGoldenCases(std::istream& in);

// Whether numbers of `dtype` after a step agree to 1e-6 (f32) or 1e-12 (f64), relative to what is
// wanted or to 1 if that is more.
absl::Status Compare(DType dtype, absl::Span<const double> got, absl::Span<const double> want,
                     size_t step);

// Takes the steps of `golden`, which are dense; every parameter must agree as above, and no
// gradient may change.
absl::Status Replay(const GoldenCase& golden);

}  // namespace psd::optim
