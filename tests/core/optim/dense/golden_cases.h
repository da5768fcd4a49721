#pragma once

// Steps of another implementation's optimizers, and their replay by psd's. The format is that of
// tests/golden/optim/make_golden.py and make_golden_rows.py.

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
  std::vector<double> rows;      // the rows of a sparse gradient
  std::vector<double> gradient;  // empty if there is no gradient
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

// Checks that numbers of `dtype` after a step agree to 1e-6 (f32) or 1e-12 (f64), relative to the
// wanted number, or to 1 if that is larger.
absl::Status Compare(DType dtype, absl::Span<const double> got, absl::Span<const double> want,
                     size_t step);

// Replays the steps of `golden`, which must be dense. Every parameter must agree as Compare says,
// and no gradient may change.
absl::Status Replay(const GoldenCase& golden);

}  // namespace psd::optim
