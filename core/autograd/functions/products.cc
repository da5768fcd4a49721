#include "core/autograd/functions/products.h"

#include <array>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/functions/function_node.h"
#include "core/base/status.h"
#include "core/tensor/ops/matmul.h"
#include "core/tensor/ops/reduce.h"

namespace psd {
namespace {

// y = x wᵀ + b: dx = g w, dw = gᵀ x, db = the sum of g's rows. Saved: x, w.
absl::Status LinearGradient(const GradientCall& call) {
  if (call.Wants(0)) PSD_RETURN_IF_ERROR(call.Give(0, ops::Matmul(call.g, call.saved[1])));
  if (call.Wants(1)) PSD_RETURN_IF_ERROR(call.Give(1, ops::Matmul(call.g, call.saved[0], true)));
  if (call.Wants(2)) PSD_RETURN_IF_ERROR(call.Give(2, ops::Sum(call.g, 0)));
  return absl::OkStatus();
}

// y = a b: da = g bᵀ, db = aᵀ g. Saved: a, b.
absl::Status MatmulGradient(const GradientCall& call) {
  if (call.Wants(0)) {
    PSD_RETURN_IF_ERROR(call.Give(0, ops::Matmul(call.g, call.saved[1], false, true)));
  }
  if (call.Wants(1)) PSD_RETURN_IF_ERROR(call.Give(1, ops::Matmul(call.saved[0], call.g, true)));
  return absl::OkStatus();
}

std::array<Tensor, 2> SavedFactors(const Variable& x, const Variable& w) {
  return Save(KeepIf(w.requires_grad(), x.tensor()), KeepIf(x.requires_grad(), w.tensor()));
}

}  // namespace

Variable Matmul(const Variable& a, const Variable& b) {
  if (const Variable* invalid = FirstInvalid({&a, &b})) return *invalid;
  return Record("Matmul", {&a, &b}, ops::Matmul(a.tensor(), b.tensor()), SavedFactors(a, b),
                MatmulGradient);
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
