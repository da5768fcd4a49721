#pragma once

// Gradients that meet at one place are added up, in place where the sum is nobody else's.

#include <utility>

#include "absl/status/status.h"
#include "core/tensor/tensor.h"

namespace psd {

// A sum under way. A value; thread-compatible.
class GradientSum {
 public:
  GradientSum() = default;  // of none
  explicit GradientSum(Tensor gradient) : sum_(std::move(gradient)) {}

  bool defined() const { return sum_.defined(); }

  // Errors: INVALID_ARGUMENT for gradients of different shapes; what addition says.
  absl::Status Add(GradientSum other);

  // What was added up; none is left. Undefined: of none.
  Tensor Take();

 private:
  Tensor sum_;
  bool own_ = false;  // made here and nowhere else, so it may be added to in place
};

}  // namespace psd
