#pragma once

// The node behind every operator with one result, and how operators record it.

#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/autograd/node.h"
#include "core/autograd/variable.h"
#include "core/tensor/tensor.h"

namespace psd {

// What a gradient function sees.
struct GradientCall {
  const Tensor& g;                   // the gradient of the result
  const std::vector<Tensor>& saved;  // what was recorded with it
  const std::vector<Edge>& next;     // where the gradients of the arguments go

  // Whether the gradient of argument `i` is wanted.
  bool Wants(size_t i) const { return static_cast<bool>(next[i]); }
};

// The gradients of all arguments; those not wanted may be left undefined.
using GradientFunction =
    std::function<absl::StatusOr<std::vector<Tensor>>(const GradientCall& call)>;

// The first of `inputs` that is not ok; null if all are.
const Variable* FirstInvalid(absl::Span<const Variable* const> inputs);
inline const Variable* FirstInvalid(std::initializer_list<const Variable*> inputs) {
  return FirstInvalid(absl::MakeConstSpan(inputs.begin(), inputs.size()));
}

// `tensor` if `condition`, else undefined: so that values are saved for wanted gradients only.
inline Tensor KeepIf(bool condition, const Tensor& tensor) {
  return condition ? tensor : Tensor();
}

// The result of the operator `name` on `inputs` (all ok): an invalid variable for an error, a
// constant if no input requires grad or history is off, else a variable with a node that computes
// gradients from `saved`.
Variable Record(absl::string_view name, absl::Span<const Variable* const> inputs,
                absl::StatusOr<Tensor> result, std::vector<Tensor> saved,
                GradientFunction gradient);
inline Variable Record(absl::string_view name, std::initializer_list<const Variable*> inputs,
                       absl::StatusOr<Tensor> result, std::vector<Tensor> saved,
                       GradientFunction gradient) {
  return Record(name, absl::MakeConstSpan(inputs.begin(), inputs.size()), std::move(result),
                std::move(saved), std::move(gradient));
}

// A list of one gradient, or the error.
absl::StatusOr<std::vector<Tensor>> OneGradient(absl::StatusOr<Tensor> gradient);

}  // namespace psd
