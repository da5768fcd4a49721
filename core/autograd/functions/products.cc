#include "core/autograd/functions/products.h"

#include <vector>

#include "absl/status/statusor.h"
#include "core/autograd/functions/function_node.h"
#include "core/base/status.h"
#include "core/tensor/ops/matmul.h"
#include "core/tensor/ops/reduce.h"

namespace psd {
namespace {

using Gradients = absl::StatusOr<Tensors>;

// y = x wᵀ + b: dx = g w, dw = gᵀ x, db = the sum of g's rows. Saved: x, w.
Gradients LinearGradient(const GradientCall& call) {
  Tensors gradients(call.wanted.size());
  if (call.Wants(0)) {
    PSD_ASSIGN_OR_RETURN(gradients[0], ops::Matmul(call.g, call.saved[1]));
  }
  if (call.Wants(1)) {
    PSD_ASSIGN_OR_RETURN(gradients[1], ops::Matmul(call.g, call.saved[0], true));
  }
  if (call.wanted.size() > 2 && call.Wants(2)) {
    PSD_ASSIGN_OR_RETURN(gradients[2], ops::Sum(call.g, 0));
  }
  return gradients;
}

std::array<Tensor, 2> SavedFactors(const Variable& x, const Variable& w) {
  return Save(KeepIf(w.requires_grad(), x.tensor()), KeepIf(x.requires_grad(), w.tensor()));
}

}  // namespace

// y = a b: da = g bᵀ, db = aᵀ g.
Variable Matmul(const Variable& a, const Variable& b) {
  if (const Variable* invalid = FirstInvalid({&a, &b})) return *invalid;
  return Record("Matmul", {&a, &b}, ops::Matmul(a.tensor(), b.tensor()), SavedFactors(a, b),
                [](const GradientCall& call) -> Gradients {
                  Tensors gradients(2);
                  if (call.Wants(0)) {
                    PSD_ASSIGN_OR_RETURN(gradients[0],
                                         ops::Matmul(call.g, call.saved[1], false, true));
                  }
                  if (call.Wants(1)) {
                    PSD_ASSIGN_OR_RETURN(gradients[1], ops::Matmul(call.saved[0], call.g, true));
                  }
                  return gradients;
                });
}

Variable Linear(const Variable& x, const Variable& w) {
  if (const Variable* invalid = FirstInvalid({&x, &w})) return *invalid;
  return Record("Linear", {&x, &w}, ops::Linear(x.tensor(), w.tensor(), Tensor()),
                SavedFactors(x, w), LinearGradient);
}

Variable Linear(const Variable& x, const Variable& w, const Variable& b) {
  if (const Variable* invalid = FirstInvalid({&x, &w, &b})) return *invalid;
  return Record("Linear", {&x, &w, &b}, ops::Linear(x.tensor(), w.tensor(), b.tensor()),
                SavedFactors(x, w), LinearGradient);
}

}  // namespace psd
