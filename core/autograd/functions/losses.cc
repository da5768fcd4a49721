#include "core/autograd/functions/losses.h"

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/autograd/functions/function_node.h"
#include "core/base/status.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/loss.h"

namespace psd {
namespace {

using Gradients = absl::StatusOr<Tensors>;

// da = 2 (a - b) g / n, db = -da. Saved: a, b.
Gradients MseGradient(const GradientCall& call) {
  Tensors gradients(2);
  const double n = static_cast<double>(call.saved[0].NumElements());
  PSD_ASSIGN_OR_RETURN(Tensor share, ops::Mul(call.g, 2 / n));
  PSD_ASSIGN_OR_RETURN(Tensor difference, ops::Sub(call.saved[0], call.saved[1]));
  PSD_ASSIGN_OR_RETURN(Tensor of_a, ops::Mul(difference, share));
  if (call.Wants(1)) {
    PSD_ASSIGN_OR_RETURN(gradients[1], ops::Neg(of_a));
  }
  gradients[0] = std::move(of_a);
  return gradients;
}

}  // namespace

Variable CrossEntropy(const Variable& logits, const Variable& labels) {
  if (const Variable* invalid = FirstInvalid({&logits, &labels})) return *invalid;
  Tensor log_probabilities;
  absl::StatusOr<Tensor> loss =
      ops::CrossEntropy(logits.tensor(), labels.tensor(), &log_probabilities);
  return Record("CrossEntropy", {&logits, &labels}, std::move(loss),
                Save(std::move(log_probabilities), labels.tensor()),
                [](const GradientCall& call) -> Gradients {
                  Tensors gradients(2);
                  PSD_ASSIGN_OR_RETURN(gradients[0], ops::CrossEntropyGradient(
                                                         call.saved[0], call.saved[1], call.g));
                  return gradients;
                });
}

Variable Mse(const Variable& a, const Variable& b) {
  if (const Variable* invalid = FirstInvalid({&a, &b})) return *invalid;
  return Record("Mse", {&a, &b}, ops::Mse(a.tensor(), b.tensor()), Save(a.tensor(), b.tensor()),
                MseGradient);
}

}  // namespace psd
