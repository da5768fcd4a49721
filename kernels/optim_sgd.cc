#include "kernels/optim_sgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optim_sgd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/optim-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

enum class Momentum { kNone, kPlain, kNesterov };

template <typename T, Momentum kMomentum, bool kDecay>
struct SgdUpdate {
  static constexpr size_t kStates = kMomentum == Momentum::kNone ? 0 : 1;
  T* state[kMaxStates];
  T minus_lr, factor, limit, weight_decay, momentum, gradient_share;

  template <class D, class V>
  HWY_INLINE V operator()(D d, V parameter, V gradient, size_t i) const {
    gradient = Prepared(d, gradient, factor, limit);
    if constexpr (kDecay) gradient = hn::MulAdd(parameter, hn::Set(d, weight_decay), gradient);
    V direction = gradient;
    if constexpr (kMomentum != Momentum::kNone) {
      const V mu = hn::Set(d, momentum);
      const V share = hn::Mul(gradient, hn::Set(d, gradient_share));
      const V buffer = hn::MulAdd(hn::Load(d, state[0] + i), mu, share);
      hn::Store(buffer, d, state[0] + i);
      direction = kMomentum == Momentum::kNesterov ? hn::MulAdd(buffer, mu, gradient) : buffer;
    }
    return hn::MulAdd(direction, hn::Set(d, minus_lr), parameter);
  }
};

template <Momentum kMomentum, bool kDecay, typename T>
HWY_INLINE void RunSgd(const SgdOptions& options, int64_t step, const OptimArrays<T>& arrays,
                       T* buffer) {
  SgdUpdate<T, kMomentum, kDecay> update{};
  update.state[0] = buffer;
  update.minus_lr = static_cast<T>(-options.lr);
  update.factor = GradientFactor(arrays, options.maximize);
  update.limit = static_cast<T>(arrays.gradient_limit);
  update.weight_decay = static_cast<T>(options.weight_decay);
  update.momentum = static_cast<T>(options.momentum);
  update.gradient_share = static_cast<T>(step == 1 ? 1 : 1 - options.dampening);
  Sweep(update, arrays);
}

template <bool kDecay, typename T>
HWY_INLINE void ChooseMomentum(const SgdOptions& options, int64_t step,
                               const OptimArrays<T>& arrays, T* buffer) {
  if (options.momentum == 0) {
    RunSgd<Momentum::kNone, kDecay>(options, step, arrays, buffer);
  } else if (options.nesterov) {
    RunSgd<Momentum::kNesterov, kDecay>(options, step, arrays, buffer);
  } else {
    RunSgd<Momentum::kPlain, kDecay>(options, step, arrays, buffer);
  }
}

// Without decay the parameter must not enter the gradient at all: 0 * infinity is not 0.
template <typename T>
HWY_INLINE void ChooseSgd(const SgdOptions& options, int64_t step, const OptimArrays<T>& arrays,
                          T* buffer) {
  if (options.weight_decay == 0) {
    ChooseMomentum<false>(options, step, arrays, buffer);
  } else {
    ChooseMomentum<true>(options, step, arrays, buffer);
  }
}

void SgdF32(const SgdOptions& options, int64_t step, const OptimArrays<float>& arrays,
            float* buffer) {
  ChooseSgd(options, step, arrays, buffer);
}
void SgdF64(const SgdOptions& options, int64_t step, const OptimArrays<double>& arrays,
            double* buffer) {
  ChooseSgd(options, step, arrays, buffer);
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(SgdF32);
HWY_EXPORT(SgdF64);

void SgdStep(const SgdOptions& options, int64_t step, const OptimArrays<float>& arrays,
             float* momentum_buffer) {
  HWY_DYNAMIC_DISPATCH(SgdF32)(options, step, arrays, momentum_buffer);
}
void SgdStep(const SgdOptions& options, int64_t step, const OptimArrays<double>& arrays,
             double* momentum_buffer) {
  HWY_DYNAMIC_DISPATCH(SgdF64)(options, step, arrays, momentum_buffer);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
