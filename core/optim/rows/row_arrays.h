#pragma once

// Helpers of the row optimizers, which convert untyped row arrays to the types that the kernels
// take.

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/functional/row_optimizer.h"
#include "core/tensor/dtype.h"
#include "kernels/rows/rows_optim.h"

namespace psd::optim {

template <typename T>
kernels::RowBatch<T> KernelRows(const RowArrays& arrays) {
  kernels::RowBatch<T> batch;
  batch.table = reinterpret_cast<const T*>(arrays.table);
  batch.stride = batch.width = arrays.width;
  batch.ids = arrays.ids;
  batch.begins = arrays.begins;
  batch.count = arrays.count;
  batch.ahead = arrays.ahead;
  batch.positions = arrays.positions;
  batch.gradients = reinterpret_cast<const T*>(arrays.gradients);
  batch.next = reinterpret_cast<T*>(arrays.next);
  batch.gradient_scale = arrays.gradient_scale;
  batch.gradient_limit = arrays.gradient_limit;
  return batch;
}

// Returns state array number `slot`, or null if there are fewer.
template <typename T>
T* RowState(const RowArrays& arrays, size_t slot) {
  return slot < arrays.state.size() ? reinterpret_cast<T*>(arrays.state[slot]) : nullptr;
}

// Calls `run` with a zero of the arrays' element type, float or double.
template <typename Run>
void WithRowType(const RowArrays& arrays, const Run& run) {
  if (arrays.dtype == DType::kF32) {
    run(float{});
  } else {
    run(double{});
  }
}

// Checks the options of an optimizer that also steps dense parameters.
// Errors: INVALID_ARGUMENT unless weight_decay and stochastic_rounding are 0.
inline absl::Status CheckOptionsForRows(const OptimizerSpec& spec) {
  const auto refusal = [&](absl::string_view option, absl::string_view reason) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.type, ": ", option, " = ", spec.options.at(std::string(option)),
                     ", but rows and sparse gradients need 0: ", reason));
  };
  if (spec.options.at("weight_decay") != 0)
    return refusal("weight_decay", "it would move rows that have no gradient");
  const auto rounding = spec.options.find("stochastic_rounding");
  if (rounding != spec.options.end() && rounding->second != 0)
    return refusal("stochastic_rounding", "it is for bf16 only");
  return absl::OkStatus();
}

}  // namespace psd::optim
