#include "kernels/optim/reference.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/convert.h"
#include "kernels/optim/rounding.h"

namespace psd::kernels {
namespace {

// One element of the arrays: parameter, gradient and state. A formula is given an element, changes
// its state and returns the new parameter.
template <typename T>
struct Element {
  T w, g;
  T* state[kMaxOptimStates];
};

template <typename P, typename T>
P Rounded(const OptimBatch& batch, const OptimArrays& arrays, size_t i, T value) {
  if constexpr (std::is_same_v<P, BFloat16>) {
    if (batch.stochastic_rounding && !std::isnan(value)) {
      const uint64_t element = arrays.first_element + i;
      const uint64_t key =
          RoundingKey(arrays.rounding_seed, batch.step, element / kOptimPartElements);
      const uint32_t random =
          RoundingBits(key, static_cast<uint32_t>(element % kOptimPartElements)) >> 16;
      return {static_cast<uint16_t>((FloatBits(value) + random) >> 16)};
    }
  }
  return Convert<P>(value);
}

template <typename P, typename T, typename Formula>
void EachElement(const OptimBatch& batch, const OptimArrays& arrays, bool maximize, T weight_decay,
                 const Formula& formula) {
  const T limit = static_cast<T>(batch.gradient_limit);
  for (size_t i = 0; i < arrays.size; ++i) {
    Element<T> element = {};
    element.w = Convert<T>(static_cast<const P*>(arrays.parameter)[i]);
    T g = Convert<T>(static_cast<const P*>(arrays.gradient)[i]);
    g *= static_cast<T>(batch.gradient_scale);
    if (g > limit) g = limit;
    if (g < -limit) g = -limit;
    if (maximize) g = -g;
    if (weight_decay != 0) g += weight_decay * element.w;
    element.g = g;
    for (size_t s = 0; s < kMaxOptimStates; ++s) {
      if (arrays.state[s] != nullptr) element.state[s] = static_cast<T*>(arrays.state[s]) + i;
    }
    static_cast<P*>(arrays.next)[i] = Rounded<P>(batch, arrays, i, formula(element));
  }
}

// Calls formula(element) for every element of every array of the batch.
template <typename Formula>
void EachArray(const OptimBatch& batch, bool maximize, double weight_decay,
               const Formula& formula) {
  const auto narrow_decay = static_cast<float>(weight_decay);
  for (size_t k = 0; k < batch.count; ++k) {
    const OptimArrays& arrays = batch.arrays[k];
    switch (batch.type) {
      case OptimType::kF32:
        EachElement<float>(batch, arrays, maximize, narrow_decay, formula);
        break;
      case OptimType::kF64:
        EachElement<double>(batch, arrays, maximize, weight_decay, formula);
        break;
      case OptimType::kF16:
        EachElement<Half>(batch, arrays, maximize, narrow_decay, formula);
        break;
      case OptimType::kBF16:
        EachElement<BFloat16>(batch, arrays, maximize, narrow_decay, formula);
        break;
    }
  }
}

template <typename T>
void Average(T& mean, double keep, T value) {
  mean = static_cast<T>(keep) * mean + static_cast<T>(1 - keep) * value;
}

}  // namespace

void ReferenceStep(const SgdOptions& options, const OptimBatch& batch) {
  EachArray(batch, options.maximize, options.weight_decay, [&](auto& e) {
    using T = decltype(e.w);
    T direction = e.g;
    if (options.momentum != 0) {
      const T mu = static_cast<T>(options.momentum);
      T& b = *e.state[0];
      b = batch.step == 1 ? e.g : mu * b + static_cast<T>(1 - options.dampening) * e.g;
      direction = options.nesterov ? e.g + mu * b : b;
    }
    return e.w - static_cast<T>(options.lr) * direction;
  });
}

void ReferenceStep(const AdagradOptions& options, const OptimBatch& batch) {
  const double lr = options.lr / (1 + static_cast<double>(batch.step - 1) * options.lr_decay);
  EachArray(batch, options.maximize, options.weight_decay, [&](auto& e) {
    using T = decltype(e.w);
    T& sum = *e.state[0];
    sum += e.g * e.g;
    return e.w - static_cast<T>(lr) * (e.g / (std::sqrt(sum) + static_cast<T>(options.eps)));
  });
}

void ReferenceStep(const AdamOptions& options, const OptimBatch& batch) {
  const double t = static_cast<double>(batch.step);
  const double step_size = options.lr / (1 - std::pow(options.beta1, t));
  const double root2 = std::sqrt(1 - std::pow(options.beta2, t));
  const double decay = options.decoupled_decay ? 0 : options.weight_decay;
  EachArray(batch, options.maximize, decay, [&](auto& e) {
    using T = decltype(e.w);
    if (options.decoupled_decay) e.w *= static_cast<T>(1 - options.lr * options.weight_decay);
    Average(*e.state[0], options.beta1, e.g);
    Average(*e.state[1], options.beta2, e.g * e.g);
    T corrected = *e.state[1];
    if (options.amsgrad) {
      T& most = *e.state[2];
      if (corrected > most || std::isnan(corrected)) most = corrected;
      corrected = most;
    }
    const T root = std::sqrt(corrected) / static_cast<T>(root2) + static_cast<T>(options.eps);
    return e.w - static_cast<T>(step_size) * (*e.state[0] / root);
  });
}

void ReferenceStep(const AdamaxOptions& options, const OptimBatch& batch) {
  const double step_size =
      options.lr / (1 - std::pow(options.beta1, static_cast<double>(batch.step)));
  EachArray(batch, options.maximize, options.weight_decay, [&](auto& e) {
    using T = decltype(e.w);
    Average(*e.state[0], options.beta1, e.g);
    T& norm = *e.state[1];
    norm *= static_cast<T>(options.beta2);
    const T size = std::abs(e.g) + static_cast<T>(options.eps);
    if (size > norm || std::isnan(size)) norm = size;
    return e.w - static_cast<T>(step_size) * (*e.state[0] / norm);
  });
}

void ReferenceStep(const AdadeltaOptions& options, const OptimBatch& batch) {
  EachArray(batch, options.maximize, options.weight_decay, [&](auto& e) {
    using T = decltype(e.w);
    const T eps = static_cast<T>(options.eps);
    Average(*e.state[0], options.rho, e.g * e.g);
    const T delta = std::sqrt(*e.state[1] + eps) / std::sqrt(*e.state[0] + eps) * e.g;
    Average(*e.state[1], options.rho, delta * delta);
    return e.w - static_cast<T>(options.lr) * delta;
  });
}

void ReferenceStep(const RmsPropOptions& options, const OptimBatch& batch) {
  EachArray(batch, options.maximize, options.weight_decay, [&](auto& e) {
    using T = decltype(e.w);
    Average(*e.state[0], options.alpha, e.g * e.g);
    T variance = *e.state[0];
    if (options.centered) {
      T& mean = *e.state[options.momentum != 0 ? 2 : 1];
      Average(mean, options.alpha, e.g);
      variance -= mean * mean;
    }
    T direction = e.g / (std::sqrt(variance) + static_cast<T>(options.eps));
    if (options.momentum != 0)
      direction = *e.state[1] = static_cast<T>(options.momentum) * *e.state[1] + direction;
    return e.w - static_cast<T>(options.lr) * direction;
  });
}

void ReferenceStep(const RpropOptions& options, const OptimBatch& batch) {
  EachArray(batch, options.maximize, 0, [&](auto& e) {
    using T = decltype(e.w);
    T& previous = *e.state[0];
    T& size = *e.state[1];
    const T agreement = e.g * previous;
    if (agreement > 0) size *= static_cast<T>(options.etaplus);
    if (agreement < 0) size *= static_cast<T>(options.etaminus);
    if (size < static_cast<T>(options.step_size_min)) size = static_cast<T>(options.step_size_min);
    if (size > static_cast<T>(options.step_size_max)) size = static_cast<T>(options.step_size_max);
    previous = agreement < 0 ? 0 : e.g;
    if (previous == 0) return e.w;
    if (std::isnan(previous)) return previous;
    return previous > 0 ? e.w - size : e.w + size;
  });
}

}  // namespace psd::kernels
