#pragma once

// The row optimizers' formulas as plain scalar loops, against which the vectorised kernels are
// tested.

#include <cstdint>

#include "kernels/rows/rows_optim.h"

namespace psd::kernels {

// Each does the same as the function of that name in rows_optim.h. T is float or double.
template <typename T>
void ReferenceSgdRows(const RowSgdOptions& options, int64_t step, const RowBatch<T>& rows,
                      T* buffer);
template <typename T>
void ReferenceAdagradRows(const RowAdagradOptions& options, int64_t step, const RowBatch<T>& rows,
                          T* sum);
template <typename T>
void ReferenceRowwiseAdagradRows(const RowAdagradOptions& options, int64_t step,
                                 const RowBatch<T>& rows, T* sum);
template <typename T>
void ReferenceSparseAdamRows(const SparseAdamOptions& options, int64_t step,
                             const RowBatch<T>& rows, T* exp_avg, T* exp_avg_sq);

}  // namespace psd::kernels
