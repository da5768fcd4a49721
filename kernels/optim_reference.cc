#include "kernels/optim_reference.h"

#include <cmath>

namespace psd::kernels {
namespace {

template <typename T>
T Gradient(const OptimArrays<T>& arrays, bool maximize, size_t i) {
  const T limit = static_cast<T>(arrays.gradient_limit);
  T g = arrays.gradient[i] * static_cast<T>(arrays.gradient_scale);
  if (g > limit) g = limit;
  if (g < -limit) g = -limit;
  return maximize ? -g : g;
}

}  // namespace

template <typename T>
void ReferenceSgdStep(const SgdOptions& options, int64_t step, const OptimArrays<T>& arrays,
                      T* momentum_buffer) {
  const T mu = static_cast<T>(options.momentum);
  for (size_t i = 0; i < arrays.size; ++i) {
    const T w = arrays.parameter[i];
    T g = Gradient(arrays, options.maximize, i);
    if (options.weight_decay != 0) g += static_cast<T>(options.weight_decay) * w;
    T direction = g;
    if (options.momentum != 0) {
      T& b = momentum_buffer[i];
      b = step == 1 ? g : mu * b + static_cast<T>(1 - options.dampening) * g;
      direction = options.nesterov ? g + mu * b : b;
    }
    arrays.next[i] = w - static_cast<T>(options.lr) * direction;
  }
}

template <typename T>
void ReferenceAdamStep(const AdamOptions& options, int64_t step, const OptimArrays<T>& arrays,
                       const AdamState<T>& state) {
  const double t = static_cast<double>(step);
  const T step_size = static_cast<T>(options.lr / (1 - std::pow(options.beta1, t)));
  const T root2 = static_cast<T>(std::sqrt(1 - std::pow(options.beta2, t)));
  for (size_t i = 0; i < arrays.size; ++i) {
    T w = arrays.parameter[i];
    T g = Gradient(arrays, options.maximize, i);
    if (options.decoupled_decay) {
      w *= static_cast<T>(1 - options.lr * options.weight_decay);
    } else if (options.weight_decay != 0) {
      g += static_cast<T>(options.weight_decay) * w;
    }
    T& m = state.exp_avg[i];
    T& v = state.exp_avg_sq[i];
    m = static_cast<T>(options.beta1) * m + static_cast<T>(1 - options.beta1) * g;
    v = static_cast<T>(options.beta2) * v + static_cast<T>(1 - options.beta2) * g * g;
    T corrected = v;
    if (options.amsgrad) {
      T& x = state.max_exp_avg_sq[i];
      if (v > x || std::isnan(v)) x = v;
      corrected = x;
    }
    const T root = std::sqrt(corrected) / root2 + static_cast<T>(options.eps);
    arrays.next[i] = w - step_size * (m / root);
  }
}

template void ReferenceSgdStep<float>(const SgdOptions&, int64_t, const OptimArrays<float>&,
                                      float*);
template void ReferenceSgdStep<double>(const SgdOptions&, int64_t, const OptimArrays<double>&,
                                       double*);
template void ReferenceAdamStep<float>(const AdamOptions&, int64_t, const OptimArrays<float>&,
                                       const AdamState<float>&);
template void ReferenceAdamStep<double>(const AdamOptions&, int64_t, const OptimArrays<double>&,
                                        const AdamState<double>&);

}  // namespace psd::kernels
