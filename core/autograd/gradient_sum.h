#pragma once

// Adds up gradients that arrive at the same place. The sum is changed in place if nobody else can
// see it. Gradients of f16 and bf16 are added in f32, and their sum is rounded once.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/status.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"

namespace psd {

// A list of sums, each undefined until a gradient is added. A value; thread-compatible.
class GradientSums {
 public:
  explicit GradientSums(size_t count = 0) { Resize(count); }
  void Resize(size_t count) {
    sums_.resize(count);
    states_.resize(count);
  }

  bool Defined(size_t at) const { return sums_[at].defined(); }

  // Adds `gradient` to sum number `at`; an undefined gradient changes nothing. `anywhere`: the sum
  // may move to the host if its device has no room. Errors: INVALID_ARGUMENT for gradients of
  // different shapes; those of the addition. The sum is undetermined after an error.
  absl::Status Add(size_t at, Tensor&& gradient, bool anywhere = false) {
    if (sums_[at].defined())
      return gradient.defined() ? AddTo(at, gradient, anywhere) : absl::OkStatus();
    sums_[at] = std::move(gradient);
    return absl::OkStatus();
  }

  // Returns sum number `at` and clears it. The tensor is undefined if nothing was added.
  // Errors: RESOURCE_EXHAUSTED when there is no memory to round a sum of f16 or bf16.
  absl::StatusOr<Tensor> Take(size_t at) {
    PSD_RETURN_IF_ERROR(Finish(at));
    return std::exchange(sums_[at], Tensor());
  }
  // Returns `count` sums from number `first` on, in place. Before anything is added again, the
  // caller must make these tensors undefined. Errors: as above; the sums are then undetermined.
  absl::StatusOr<absl::Span<Tensor>> Take(size_t first, size_t count) {
    for (size_t i = 0; i < count; ++i) PSD_RETURN_IF_ERROR(Finish(first + i));
    return absl::MakeSpan(sums_).subspan(first, count);
  }

 private:
  enum class State : uint8_t {
    kGiven,     // at most one gradient, which others may see
    kOwn,       // the sum was made here and is not shared
    kWideF16,   // as kOwn, but in f32 although its gradients are of f16
    kWideBF16,  // the same for bf16
  };

  absl::Status AddTo(size_t at, const Tensor& gradient, bool anywhere);
  absl::Status Finish(size_t at) {
    const State state = std::exchange(states_[at], State::kGiven);
    if (ABSL_PREDICT_TRUE(state <= State::kOwn)) return absl::OkStatus();
    return Round(sums_[at], state == State::kWideF16 ? DType::kF16 : DType::kBF16);
  }
  static absl::Status Round(Tensor& sum, DType dtype);

  std::vector<Tensor> sums_;
  std::vector<State> states_;
};

}  // namespace psd
