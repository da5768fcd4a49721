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

  bool defined() const { return sum_.defined(); }

  // Errors: INVALID_ARGUMENT for gradients of different shapes; what addition says.
  absl::Status Add(Tensor gradient) {
    if (sum_.defined()) return gradient.defined() ? AddTo(gradient) : absl::OkStatus();
    sum_ = std::move(gradient);
    return absl::OkStatus();
  }

  // What was added up; none is left. Undefined: of none.
  Tensor Take() {
    own_ = false;
    return std::exchange(sum_, Tensor());
  }

 private:
  absl::Status AddTo(const Tensor& gradient);

  Tensor sum_;
  bool own_ = false;  // made here and nowhere else, so it may be added to in place
};

}  // namespace psd
