#pragma once

// The outcome of a step that one rank takes for its group, in the form in which it tells the other
// ranks. Pure. Internal to client/.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd {

struct PushOutcome {
  absl::Status status;    // of the step, with its ErrorDetail
  double loss_scale = 1;  // for the next loss
};

// Returns bytes (u8) for Group::Broadcast.
Tensor EncodeOutcome(const PushOutcome& outcome);
// Errors: INTERNAL for bytes that EncodeOutcome does not make.
absl::StatusOr<PushOutcome> DecodeOutcome(const Tensor& bytes);

}  // namespace psd
