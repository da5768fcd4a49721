#pragma once

// From untyped step arrays to what the kernels take, and what most optimizers share.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/optim/functional_optimizer.h"
#include "core/tensor/dtype.h"
#include "kernels/optim_arrays.h"

namespace psd::optim {

template <typename T>
kernels::OptimArrays<T> KernelArrays(const StepArrays& arrays) {
  return {reinterpret_cast<const T*>(arrays.parameter),
          reinterpret_cast<T*>(arrays.next),
          reinterpret_cast<const T*>(arrays.gradient),
          static_cast<size_t>(arrays.elements),
          arrays.gradient_scale,
          arrays.gradient_limit};
}

// State array number `slot`; null if there are fewer.
template <typename T>
T* KernelState(const StepArrays& arrays, size_t slot) {
  return slot < arrays.state.size() ? reinterpret_cast<T*>(arrays.state[slot]) : nullptr;
}

// Errors: INVALID_ARGUMENT unless f32 or f64.
inline absl::Status CheckF32OrF64(const OptimizerSpec& spec, DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kF64) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(spec.type, " steps parameters of f32 and f64, not ", DTypeName(dtype)));
}

}  // namespace psd::optim
