#include "kernels/rows/rows_reference.h"

#include <cmath>
#include <cstddef>
#include <vector>

namespace psd::kernels {
namespace {

template <typename T>
std::vector<T> SummedGradient(const RowBatch<T>& rows, size_t k, bool maximize) {
  std::vector<T> sum(rows.width);
  for (size_t i = rows.begins[k]; i < rows.begins[k + 1]; ++i)
    for (size_t j = 0; j < rows.width; ++j)
      sum[j] += rows.gradients[rows.positions[i] * rows.width + j];
  const T limit = static_cast<T>(rows.gradient_limit);
  for (T& g : sum) {
    g *= static_cast<T>(maximize ? -rows.gradient_scale : rows.gradient_scale);
    if (std::abs(g) > limit) g = std::copysign(limit, g);
  }
  return sum;
}

double Rate(const RowAdagradOptions& options, int64_t step) {
  return options.lr / (1 + static_cast<double>(step - 1) * options.lr_decay);
}

// Computes the new elements of row k as element(w, g, at), where `at` is the index in packed state.
template <typename T, typename Element>
void EachRow(const RowBatch<T>& rows, size_t k, const std::vector<T>& g, const Element& element) {
  const auto id = static_cast<size_t>(rows.ids[k]);
  for (size_t j = 0; j < rows.width; ++j)
    rows.next[k * rows.width + j] =
        element(rows.table[id * rows.stride + j], g[j], id * rows.width + j);
}

}  // namespace

template <typename T>
void ReferenceSgdRows(const RowSgdOptions& options, int64_t step, const RowBatch<T>& rows,
                      T* buffer) {
  const T mu = static_cast<T>(options.momentum);
  for (size_t k = 0; k < rows.count; ++k) {
    const std::vector<T> gradient = SummedGradient(rows, k, options.maximize);
    EachRow(rows, k, gradient, [&](T w, T g, size_t at) {
      T direction = g;
      if (options.momentum != 0) {
        T& b = buffer[at];
        b = step == 1 ? g : mu * b + static_cast<T>(1 - options.dampening) * g;
        direction = options.nesterov ? g + mu * b : b;
      }
      return w - static_cast<T>(options.lr) * direction;
    });
  }
}

template <typename T>
void ReferenceAdagradRows(const RowAdagradOptions& options, int64_t step, const RowBatch<T>& rows,
                          T* sum) {
  const T rate = static_cast<T>(Rate(options, step));
  for (size_t k = 0; k < rows.count; ++k) {
    const std::vector<T> gradient = SummedGradient(rows, k, options.maximize);
    EachRow(rows, k, gradient, [&](T w, T g, size_t at) {
      sum[at] += g * g;
      return w - rate * g / (std::sqrt(sum[at]) + static_cast<T>(options.eps));
    });
  }
}

template <typename T>
void ReferenceRowwiseAdagradRows(const RowAdagradOptions& options, int64_t step,
                                 const RowBatch<T>& rows, T* sum) {
  const T rate = static_cast<T>(Rate(options, step));
  for (size_t k = 0; k < rows.count; ++k) {
    const std::vector<T> gradient = SummedGradient(rows, k, options.maximize);
    T& s = sum[rows.ids[k]];
    T squares = 0;
    for (T g : gradient) squares += g * g;
    s += squares / static_cast<T>(rows.width);
    EachRow(rows, k, gradient, [&](T w, T g, size_t) {
      return w - rate * g / (std::sqrt(s) + static_cast<T>(options.eps));
    });
  }
}

template <typename T>
void ReferenceSparseAdamRows(const SparseAdamOptions& options, int64_t step,
                             const RowBatch<T>& rows, T* exp_avg, T* exp_avg_sq) {
  const auto t = static_cast<double>(step);
  const T rate = static_cast<T>(options.lr * std::sqrt(1 - std::pow(options.beta2, t)) /
                                (1 - std::pow(options.beta1, t)));
  for (size_t k = 0; k < rows.count; ++k) {
    const std::vector<T> gradient = SummedGradient(rows, k, options.maximize);
    EachRow(rows, k, gradient, [&](T w, T g, size_t at) {
      T& m = exp_avg[at];
      T& v = exp_avg_sq[at];
      m += static_cast<T>(1 - options.beta1) * (g - m);
      v += static_cast<T>(1 - options.beta2) * (g * g - v);
      return w - rate * m / (std::sqrt(v) + static_cast<T>(options.eps));
    });
  }
}

#define PSD_ROWS_REFERENCE(T)                                                                     \
  template void ReferenceSgdRows<T>(const RowSgdOptions&, int64_t, const RowBatch<T>&, T*);       \
  template void ReferenceAdagradRows<T>(const RowAdagradOptions&, int64_t, const RowBatch<T>&,    \
                                        T*);                                                      \
  template void ReferenceRowwiseAdagradRows<T>(const RowAdagradOptions&, int64_t,                 \
                                               const RowBatch<T>&, T*);                           \
  template void ReferenceSparseAdamRows<T>(const SparseAdamOptions&, int64_t, const RowBatch<T>&, \
                                           T*, T*);
PSD_ROWS_REFERENCE(float)
PSD_ROWS_REFERENCE(double)
#undef PSD_ROWS_REFERENCE

}  // namespace psd::kernels
