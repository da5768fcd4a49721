#pragma once

// Points of the plane on three arms of a spiral, which no straight line can separate.

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/psd.h"

namespace psd::examples {

inline constexpr int64_t kSpiralArms = 3;

struct LabelledPoints {
  Tensor x;       // f32[points, 2], within the unit disk
  Tensor labels;  // i64[points]: the arm
};

// Requires: points_per_arm >= 2. Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<LabelledPoints> MakeSpirals(int64_t points_per_arm, uint64_t seed);

// Returns the fraction of rows whose largest logit is that of their label.
double Accuracy(const Tensor& logits, const Tensor& labels);

}  // namespace psd::examples
