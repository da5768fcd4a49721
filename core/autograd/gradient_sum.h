#pragma once

// Gradients that meet at one place are added up, in place where the sum is nobody else's.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/tensor/tensor.h"

namespace psd {

// Sums under way, by number. A value; thread-compatible.
class GradientSums {
 public:
  explicit GradientSums(size_t count = 0) { Resize(count); }
  void Resize(size_t count) {
    sums_.resize(count);
    own_.resize(count);
  }

  bool Defined(size_t at) const { return sums_[at].defined(); }

  // Errors: INVALID_ARGUMENT for gradients of different shapes; what addition says.
  absl::Status Add(size_t at, Tensor&& gradient) {
    if (sums_[at].defined()) return gradient.defined() ? AddTo(at, gradient) : absl::OkStatus();
    sums_[at] = std::move(gradient);
    return absl::OkStatus();
  }

  // What was added up; none is left. Undefined: of none.
  Tensor Take(size_t at) {
    own_[at] = false;
    return std::exchange(sums_[at], Tensor());
  }
  // The same for `count` sums from `first` on, where they lie: the caller makes them undefined.
  absl::Span<Tensor> Take(size_t first, size_t count) {
    for (size_t i = 0; i < count; ++i) own_[first + i] = false;
    return absl::MakeSpan(sums_).subspan(first, count);
  }

 private:
  absl::Status AddTo(size_t at, const Tensor& gradient);

  std::vector<Tensor> sums_;
  std::vector<uint8_t> own_;  // whether it was made here and nowhere else: to be added to in place
};

}  // namespace psd
