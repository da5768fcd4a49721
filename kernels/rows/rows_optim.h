#pragma once

// Optimizers over some rows of a table. The gradients of a row are added up first, then the row is
// stepped once, in one pass over the memory.

#include <cstddef>
#include <cstdint>
#include <limits>

namespace psd::kernels {

// Some rows of a table and their gradients. `table` is only read; the new rows are written to
// `next`, packed, for the caller to publish. No two arrays overlap.
template <typename T>
struct RowBatch {
  const T* table = nullptr;
  size_t stride = 0;  // elements from one row of the table to the next, >= width
  size_t width = 0;
  // ids[k] is the id of row k of the batch; no two are equal. positions[begins[k]] to
  // positions[begins[k + 1] - 1] are the rows of `gradients` that belong to it; a row without such
  // rows has the gradient 0. `ids` has count + ahead elements, `begins` one more.
  const int64_t* ids = nullptr;
  const uint32_t* begins = nullptr;
  size_t count = 0;
  size_t ahead = 0;  // the number of ids behind the batch; their rows may be prefetched
  const uint32_t* positions = nullptr;
  const T* gradients = nullptr;  // packed rows
  T* next = nullptr;             // `count` packed rows
  // See OptimBatch; these apply to the summed gradient.
  double gradient_scale = 1;
  double gradient_limit = std::numeric_limits<double>::infinity();
};

// In all formulas w is an element of the row and g that of its summed gradient, negated if
// `maximize`. `step` counts from 1. State arrays have one packed row per row of the table, or one
// number for RowwiseAdagradRows.

// SGD: w <- w - lr d. Without momentum d = g. With momentum b <- g in step 1 and
// b <- momentum b + (1 - dampening) g in later ones, and d = g + momentum b if nesterov, else d =
// b.
struct RowSgdOptions {
  double lr = 0.01;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  bool maximize = false;
};
// `buffer` holds b and starts at 0. It is null if and only if momentum is 0.
void SgdRows(const RowSgdOptions& options, int64_t step, const RowBatch<float>& rows,
             float* buffer);
void SgdRows(const RowSgdOptions& options, int64_t step, const RowBatch<double>& rows,
             double* buffer);

// Adagrad: s <- s + g^2;  w <- w - lr / (1 + (step - 1) lr_decay) g / (sqrt(s) + eps).
struct RowAdagradOptions {
  double lr = 0.01;
  double lr_decay = 0;
  double eps = 1e-10;
  bool maximize = false;
};
void AdagradRows(const RowAdagradOptions& options, int64_t step, const RowBatch<float>& rows,
                 float* sum);
void AdagradRows(const RowAdagradOptions& options, int64_t step, const RowBatch<double>& rows,
                 double* sum);

// Row-wise Adagrad, as in FBGEMM and TorchRec: as Adagrad, with one s per row, to which the mean of
// g^2 over the row is added.
void RowwiseAdagradRows(const RowAdagradOptions& options, int64_t step, const RowBatch<float>& rows,
                        float* sum);
void RowwiseAdagradRows(const RowAdagradOptions& options, int64_t step,
                        const RowBatch<double>& rows, double* sum);

// PyTorch's SparseAdam:
// m <- m + (1 - beta1)(g - m);  v <- v + (1 - beta2)(g^2 - v);
// w <- w - lr sqrt(1 - beta2^step) / (1 - beta1^step) m / (sqrt(v) + eps).
struct SparseAdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool maximize = false;
};
void SparseAdamRows(const SparseAdamOptions& options, int64_t step, const RowBatch<float>& rows,
                    float* exp_avg, float* exp_avg_sq);
void SparseAdamRows(const SparseAdamOptions& options, int64_t step, const RowBatch<double>& rows,
                    double* exp_avg, double* exp_avg_sq);

}  // namespace psd::kernels
