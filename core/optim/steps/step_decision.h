#pragma once

// Decides how the gradients of a step are scaled and limited, from the measurements of all owners.
// The trainer that asks for the step decides once, and tells every owner. Pure.

#include <cstddef>
#include <limits>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/optim/steps/step_request.h"

namespace psd::optim {

// A trainer's wishes for one step.
struct StepWishes {
  double clip_value = std::numeric_limits<double>::infinity();  // at least 0
  double clip_norm = std::numeric_limits<double>::infinity();   // at least 0
  double loss_scale = 0;         // the number that the loss was multiplied by; 0 if it was not
  bool detect_overflow = false;  // whether to skip the step if a gradient is not finite
  size_t contexts = 1;           // the number of contexts whose gradients are added up
  bool mean = false;             // whether to take the mean over the contexts instead of the sum

  // Errors: INVALID_ARGUMENT naming the wish, its value and its range.
  absl::Status Check() const;
  // Whether the owners must measure their gradients first.
  bool NeedsMeasure() const;
};

struct StepDecision {
  StepTerms terms;
  double gradient_norm = 0;  // over all owners, unscaled, before clipping; 0 if not measured
};

// Decides the terms. `sums_of_squares` has one element for each owner, for the gradients as they
// were collected, if they were measured. As in PyTorch:
//   norm = sqrt(sum) / loss_scale / (mean ? contexts : 1)
//   scale = 1 / loss_scale / (mean ? contexts : 1) * min(1, clip_norm / (norm + 1e-6))
// and every element is used as g * scale, clamped to +-clip_value. Without detect_overflow the
// caller refuses gradients that are not finite, because their norm is not finite.
StepDecision DecideStep(const StepWishes& wishes, absl::Span<const double> sums_of_squares);

}  // namespace psd::optim
