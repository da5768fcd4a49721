#pragma once

// Adds up gradients that arrive at the same place, in place where nobody else can see the sum.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/tensor/tensor.h"

namespace psd {

// A list of sums, each undefined until a gradient is added. A value; thread-compatible.
class GradientSums {
 public:
  explicit GradientSums(size_t count = 0) { Resize(count); }
  void Resize(size_t count) {
    sums_.resize(count);
    own_.resize(count);
  }

  bool Defined(size_t at) const { return sums_[at].defined(); }

  // Adds `gradient` to sum number `at`; an undefined gradient changes nothing.
  // Errors: INVALID_ARGUMENT for gradients of different shapes; those of the addition.
  absl::Status Add(size_t at, Tensor&& gradient) {
    if (sums_[at].defined()) return gradient.defined() ? AddTo(at, gradient) : absl::OkStatus();
    sums_[at] = std::move(gradient);
    return absl::OkStatus();
  }

  // Returns sum number `at` and clears it. The tensor is undefined if nothing was added.
  Tensor Take(size_t at) {
    own_[at] = false;
    return std::exchange(sums_[at], Tensor());
  }
  // Returns `count` sums from number `first` on, in place. The caller must make these tensors
  // undefined before anything is added again.
  absl::Span<Tensor> Take(size_t first, size_t count) {
    for (size_t i = 0; i < count; ++i) own_[first + i] = false;
    return absl::MakeSpan(sums_).subspan(first, count);
  }

 private:
  absl::Status AddTo(size_t at, const Tensor& gradient);

  std::vector<Tensor> sums_;
  std::vector<uint8_t> own_;  // whether the sum was made here, so that nobody else can see it
};

}  // namespace psd
