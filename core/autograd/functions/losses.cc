#include "core/autograd/functions/losses.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/functions/function_node.h"
#include "core/base/status.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/loss.h"

namespace psd {
namespace {

// The gradients are da = 2 (a - b) g / n and db = -da, where n is the number of elements. Saved: a,
// b.
absl::Status MseGradient(const GradientCall& call) {
  const double n = static_cast<double>(call.saved[0].NumElements());
  PSD_ASSIGN_OR_RETURN(Tensor share, ops::Mul(call.g, 2 / n));
  PSD_ASSIGN_OR_RETURN(Tensor difference, ops::Sub(call.saved[0], call.saved[1]));
  PSD_ASSIGN_OR_RETURN(Tensor of_a, ops::Mul(difference, share));
  if (call.Wants(1)) PSD_RETURN_IF_ERROR(call.Give(1, ops::Neg(of_a)));
  return call.Give(0, std::move(of_a));
}

}  // namespace

Variable CrossEntropy(const Variable& logits, const Variable& labels) {
  if (const Variable* invalid = FirstInvalid({&logits, &labels})) return *invalid;
  Tensor log_probabilities;
  absl::StatusOr<Tensor> loss =
      ops::CrossEntropy(logits.tensor(), labels.tensor(), &log_probabilities);
  return Record("CrossEntropy", {&logits, &labels}, std::move(loss),
                Save(std::move(log_probabilities), labels.tensor()), [](const GradientCall& call) {
                  return call.Give(0,
                                   ops::CrossEntropyGradient(call.saved[0], call.saved[1], call.g));
                });
}

Variable Mse(const Variable& a, const Variable& b) {
  if (const Variable* invalid = FirstInvalid({&a, &b})) return *invalid;
  return Record("Mse", {&a, &b}, ops::Mse(a.tensor(), b.tensor()), Save(a.tensor(), b.tensor()),
                MseGradient);
}

}  // namespace psd
