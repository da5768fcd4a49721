#include "examples/model_parallel_mlp/spirals.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "core/base/status.h"

namespace psd::examples {
namespace {

constexpr double kTurn = 4.0;    // radians from the centre to the end of an arm
constexpr double kNoise = 0.15;  // radians

// Returns a number in [-1, 1), the same on every machine.
double Noise(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-52 - 1;
}

}  // namespace

absl::StatusOr<LabelledPoints> MakeSpirals(int64_t points_per_arm, uint64_t seed) {
  LabelledPoints points;
  const int64_t count = kSpiralArms * points_per_arm;
  PSD_ASSIGN_OR_RETURN(points.x, Tensor::Empty({count, 2}, DType::kF32));
  PSD_ASSIGN_OR_RETURN(points.labels, Tensor::Empty({count}, DType::kI64));
  float* x = points.x.mutable_data<float>();
  int64_t* label = points.labels.mutable_data<int64_t>();
  std::mt19937_64 random(seed);
  for (int64_t arm = 0; arm < kSpiralArms; ++arm) {
    for (int64_t i = 0; i < points_per_arm; ++i) {
      const double radius = static_cast<double>(i) / static_cast<double>(points_per_arm - 1);
      const double angle = kTurn * (radius + static_cast<double>(arm) / 2) + kNoise * Noise(random);
      *x++ = static_cast<float>(radius * std::sin(angle));
      *x++ = static_cast<float>(radius * std::cos(angle));
      *label++ = arm;
    }
  }
  return points;
}

double Accuracy(const Tensor& logits, const Tensor& labels) {
  const int64_t rows = logits.shape()[0], classes = logits.shape()[1];
  int64_t right = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const float* begin = logits.data<float>() + row * classes;
    const int64_t best = std::max_element(begin, begin + classes) - begin;
    if (best == labels.data<int64_t>()[row]) ++right;
  }
  return static_cast<double>(right) / static_cast<double>(rows);
}

}  // namespace psd::examples
