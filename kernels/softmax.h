#pragma once

// Softmax and its relatives over dense rows of `cols` numbers.
//
// Each row's maximum m is taken out first: softmax = exp(x - m) / s, log-softmax = x - m - log(s),
// with s = sum of exp(x - m). A row that holds a NaN or +infinity gives NaN. Outputs may be their
// inputs. Thread-safe: no state. T is float or double. Requires: cols > 0 unless rows == 0.

#include <cstddef>
#include <cstdint>

namespace psd::kernels {

void Softmax(const float* x, size_t rows, size_t cols, float* y);
void Softmax(const double* x, size_t rows, size_t cols, double* y);

void LogSoftmax(const float* x, size_t rows, size_t cols, float* y);
void LogSoftmax(const double* x, size_t rows, size_t cols, double* y);

// dx = y * (g - sum of g * y), y being the softmax.
void SoftmaxGradient(const float* y, const float* g, size_t rows, size_t cols, float* dx);
void SoftmaxGradient(const double* y, const double* g, size_t rows, size_t cols, double* dx);

// dx = g - exp(y) * sum of g, y being the log-softmax.
void LogSoftmaxGradient(const float* y, const float* g, size_t rows, size_t cols, float* dx);
void LogSoftmaxGradient(const double* y, const double* g, size_t rows, size_t cols, double* dx);

// The mean over rows of -log_probabilities[labels[row]].
// Requires: rows > 0; 0 <= label < cols.
template <typename T>
T MeanNegativeLogLikelihood(const T* log_probabilities, const int64_t* labels, size_t rows,
                            size_t cols) {
  double total = 0;
  for (size_t row = 0; row < rows; ++row)
    total -= static_cast<double>(log_probabilities[row * cols + static_cast<size_t>(labels[row])]);
  return static_cast<T>(total / static_cast<double>(rows));
}

// The gradient of that mean over the log-softmax of `x` to x: dx = scale * (exp(y) - one-hot), y
// being the log-softmax and scale the result's gradient / rows.
void CrossEntropyGradient(const float* y, const int64_t* labels, float scale, size_t rows,
                          size_t cols, float* dx);
void CrossEntropyGradient(const double* y, const int64_t* labels, double scale, size_t rows,
                          size_t cols, double* dx);

}  // namespace psd::kernels
