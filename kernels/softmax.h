#pragma once

// Softmax and its relatives over dense rows of `cols` numbers.
//
// With m the maximum of a row and s the sum of exp(x - m) over the row, softmax = exp(x - m) / s
// and log-softmax = x - m - log(s). A row that holds a NaN or +infinity, or only -infinity, gives
// NaN. An output may be one of its inputs. Thread-safe: no state. T is float or double. Requires:
// cols > 0 unless rows == 0.

#include <cstddef>
#include <cstdint>

namespace psd::kernels {

void Softmax(const float* x, size_t rows, size_t cols, float* y);
void Softmax(const double* x, size_t rows, size_t cols, double* y);

void LogSoftmax(const float* x, size_t rows, size_t cols, float* y);
void LogSoftmax(const double* x, size_t rows, size_t cols, double* y);

// Computes the gradient of the softmax with respect to x: dx = y * (g - sum of g * y), where y is
// the softmax and g its gradient.
void SoftmaxGradient(const float* y, const float* g, size_t rows, size_t cols, float* dx);
void SoftmaxGradient(const double* y, const double* g, size_t rows, size_t cols, double* dx);

// Computes the gradient of the log-softmax with respect to x: dx = g - exp(y) * sum of g, where y
// is the log-softmax and g its gradient.
void LogSoftmaxGradient(const float* y, const float* g, size_t rows, size_t cols, float* dx);
void LogSoftmaxGradient(const double* y, const double* g, size_t rows, size_t cols, double* dx);

// Returns the mean over all rows of -log_probabilities[row][labels[row]].
// Requires: rows > 0; 0 <= label < cols.
template <typename T>
T MeanNegativeLogLikelihood(const T* log_probabilities, const int64_t* labels, size_t rows,
                            size_t cols) {
  double total = 0;
  for (size_t row = 0; row < rows; ++row)
    total -= static_cast<double>(log_probabilities[row * cols + static_cast<size_t>(labels[row])]);
  return static_cast<T>(total / static_cast<double>(rows));
}

// The gradient with respect to x of MeanNegativeLogLikelihood of the log-softmax y of x:
// dx = scale * (exp(y) - one-hot of the label), where scale is the mean's gradient / rows.
void CrossEntropyGradient(const float* y, const int64_t* labels, float scale, size_t rows,
                          size_t cols, float* dx);
void CrossEntropyGradient(const double* y, const int64_t* labels, double scale, size_t rows,
                          size_t cols, double* dx);

}  // namespace psd::kernels
