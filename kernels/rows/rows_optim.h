#pragma once

// Optimizers over some rows of a table: the gradients of repeated ids are added up first, then each
// row is stepped once. One pass over the memory concerned.

#include <cstddef>
#include <cstdint>
#include <limits>

namespace psd::kernels {

// Some rows and their gradients. New rows go to `next`, packed, for the caller to publish; `table`
// is only read. Nothing overlaps.
template <typename T>
struct RowBatch {
  const T* table = nullptr;
  size_t stride = 0;  // elements from one row of the table to the next, >= width
  size_t width = 0;
  // For each row of the batch its id (no two equal) and where its positions in `gradients` start;
  // begins has one more entry. A row without positions has the gradient 0.
  const int64_t* ids = nullptr;
  const uint32_t* begins = nullptr;
  size_t count = 0;
  size_t ahead = 0;  // how many more ids follow behind the batch: worth fetching
  const uint32_t* positions = nullptr;
  const T* gradients = nullptr;  // packed rows
  T* next = nullptr;             // `count` packed rows
  // As in OptimBatch, of the summed gradient.
  double gradient_scale = 1;
  double gradient_limit = std::numeric_limits<double>::infinity();
};

// In all of them g is the summed gradient of a row, negated if `maximize`; `step` counts from 1.
// State arrays have one packed row (row-wise: one number) per row of the table.

// w <- w - lr d, where d = g without momentum. Otherwise b <- g in the first step and
// b <- momentum b + (1 - dampening) g later, and d = g + momentum b if nesterov, else b.
struct RowSgdOptions {
  double lr = 0.01;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  bool maximize = false;
};
// `buffer` is null if and only if momentum is 0.
void SgdRows(const RowSgdOptions& options, int64_t step, const RowBatch<float>& rows,
             float* buffer);
void SgdRows(const RowSgdOptions& options, int64_t step, const RowBatch<double>& rows,
             double* buffer);

// s <- s + g^2;  w <- w - lr / (1 + (step - 1) lr_decay) g / (sqrt(s) + eps).
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

// The same with one s per row: s <- s + the mean of g^2 over the row (FBGEMM's and TorchRec's
// row-wise Adagrad).
void RowwiseAdagradRows(const RowAdagradOptions& options, int64_t step, const RowBatch<float>& rows,
                        float* sum);
void RowwiseAdagradRows(const RowAdagradOptions& options, int64_t step,
                        const RowBatch<double>& rows, double* sum);

// m <- m + (1 - beta1)(g - m);  v <- v + (1 - beta2)(g^2 - v);
// w <- w - lr sqrt(1 - beta2^step) / (1 - beta1^step) m / (sqrt(v) + eps)   (PyTorch's SparseAdam).
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
