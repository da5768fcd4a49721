#include "kernels/optim_adam.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optim_adam.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/optim-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

// The larger of `a` and `b`; not a number if either is not, which hn::Max does not promise.
template <class D, class V>
HWY_INLINE V MaxOrNaN(D, V a, V b) {
  return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::Gt(a, b)), a, b);
}

template <typename T, bool kAmsgrad, bool kDecay>
struct AdamUpdate {
  static constexpr size_t kStates = kAmsgrad ? 3 : 2;
  T* state[kMaxStates];
  T factor, limit, weight_decay, keep, beta1, beta2, share1, share2, minus_step, inverse_root2, eps;

  template <class D, class V>
  HWY_INLINE V operator()(D d, V parameter, V gradient, size_t i) const {
    gradient = Prepared(d, gradient, factor, limit);
    if constexpr (kDecay) gradient = hn::MulAdd(parameter, hn::Set(d, weight_decay), gradient);

    const V m = hn::MulAdd(hn::Load(d, state[0] + i), hn::Set(d, beta1),
                           hn::Mul(gradient, hn::Set(d, share1)));
    hn::Store(m, d, state[0] + i);
    V v = hn::MulAdd(hn::Load(d, state[1] + i), hn::Set(d, beta2),
                     hn::Mul(hn::Mul(gradient, gradient), hn::Set(d, share2)));
    hn::Store(v, d, state[1] + i);
    if constexpr (kAmsgrad) {
      v = MaxOrNaN(d, v, hn::Load(d, state[2] + i));
      hn::Store(v, d, state[2] + i);
    }
    const V root = hn::MulAdd(hn::Sqrt(v), hn::Set(d, inverse_root2), hn::Set(d, eps));
    return hn::MulAdd(hn::Div(m, root), hn::Set(d, minus_step),
                      hn::Mul(parameter, hn::Set(d, keep)));
  }
};

template <bool kAmsgrad, bool kDecay, typename T>
HWY_INLINE void RunAdam(const AdamOptions& options, int64_t step, const OptimArrays<T>& arrays,
                        const AdamState<T>& state) {
  const double t = static_cast<double>(step);
  const double correction1 = 1 - std::pow(options.beta1, t);
  const double correction2 = 1 - std::pow(options.beta2, t);
  AdamUpdate<T, kAmsgrad, kDecay> update{};
  update.state[0] = state.exp_avg;
  update.state[1] = state.exp_avg_sq;
  update.state[2] = state.max_exp_avg_sq;
  update.factor = GradientFactor(arrays, options.maximize);
  update.limit = static_cast<T>(arrays.gradient_limit);
  update.weight_decay = static_cast<T>(options.weight_decay);
  update.keep = static_cast<T>(options.decoupled_decay ? 1 - options.lr * options.weight_decay : 1);
  update.beta1 = static_cast<T>(options.beta1);
  update.beta2 = static_cast<T>(options.beta2);
  update.share1 = static_cast<T>(1 - options.beta1);
  update.share2 = static_cast<T>(1 - options.beta2);
  update.minus_step = static_cast<T>(-options.lr / correction1);
  update.inverse_root2 = static_cast<T>(1 / std::sqrt(correction2));
  update.eps = static_cast<T>(options.eps);
  Sweep(update, arrays);
}

// Without decay the parameter must not enter the gradient at all: 0 * infinity is not 0.
template <typename T>
HWY_INLINE void ChooseAdam(const AdamOptions& options, int64_t step, const OptimArrays<T>& arrays,
                           const AdamState<T>& state) {
  const bool decay = options.weight_decay != 0 && !options.decoupled_decay;
  if (options.amsgrad) {
    decay ? RunAdam<true, true>(options, step, arrays, state)
          : RunAdam<true, false>(options, step, arrays, state);
  } else {
    decay ? RunAdam<false, true>(options, step, arrays, state)
          : RunAdam<false, false>(options, step, arrays, state);
  }
}

void AdamF32(const AdamOptions& options, int64_t step, const OptimArrays<float>& arrays,
             const AdamState<float>& state) {
  ChooseAdam(options, step, arrays, state);
}
void AdamF64(const AdamOptions& options, int64_t step, const OptimArrays<double>& arrays,
             const AdamState<double>& state) {
  ChooseAdam(options, step, arrays, state);
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(AdamF32);
HWY_EXPORT(AdamF64);

void AdamStep(const AdamOptions& options, int64_t step, const OptimArrays<float>& arrays,
              const AdamState<float>& state) {
  HWY_DYNAMIC_DISPATCH(AdamF32)(options, step, arrays, state);
}
void AdamStep(const AdamOptions& options, int64_t step, const OptimArrays<double>& arrays,
              const AdamState<double>& state) {
  HWY_DYNAMIC_DISPATCH(AdamF64)(options, step, arrays, state);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
