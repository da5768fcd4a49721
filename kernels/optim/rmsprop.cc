#include "kernels/optim/rmsprop.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optim/rmsprop.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/optim/optim-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

template <typename T, bool kMomentum, bool kCentered>
struct RmsPropUpdate {
  using Number = T;
  static constexpr size_t kStates = 1 + (kMomentum ? 1 : 0) + (kCentered ? 1 : 0);
  T minus_lr, alpha, share, eps, momentum;

  explicit RmsPropUpdate(const RmsPropOptions& options)
      : minus_lr(static_cast<T>(-options.lr)),
        alpha(static_cast<T>(options.alpha)),
        share(static_cast<T>(1 - options.alpha)),
        eps(static_cast<T>(options.eps)),
        momentum(static_cast<T>(options.momentum)) {}

  template <class D, class V>
  HWY_INLINE V operator()(D d, V parameter, V gradient, V& square, V& second, V& third) const {
    const V keep = hn::Set(d, alpha);
    const V part = hn::Set(d, share);
    square = hn::MulAdd(square, keep, hn::Mul(hn::Mul(gradient, gradient), part));
    V variance = square;
    if constexpr (kCentered) {
      V& mean = kMomentum ? third : second;
      mean = hn::MulAdd(mean, keep, hn::Mul(gradient, part));
      variance = hn::NegMulAdd(mean, mean, square);
    }
    V direction = hn::Div(gradient, hn::Add(hn::Sqrt(variance), hn::Set(d, eps)));
    if constexpr (kMomentum) {
      second = direction = hn::MulAdd(second, hn::Set(d, momentum), direction);
    }
    return hn::MulAdd(direction, hn::Set(d, minus_lr), parameter);
  }
};

void RmsProp(const RmsPropOptions& options, const OptimBatch& batch) {
  const GradientTerms terms = {options.maximize, options.weight_decay};
  WithNumber(batch.type, [&](auto number) HWY_ATTR {
    using T = decltype(number);
    if (options.momentum != 0) {
      options.centered ? Sweep(RmsPropUpdate<T, true, true>(options), terms, batch)
                       : Sweep(RmsPropUpdate<T, true, false>(options), terms, batch);
    } else {
      options.centered ? Sweep(RmsPropUpdate<T, false, true>(options), terms, batch)
                       : Sweep(RmsPropUpdate<T, false, false>(options), terms, batch);
    }
  });
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(RmsProp);

void RmsPropStep(const RmsPropOptions& options, const OptimBatch& batch) {
  HWY_DYNAMIC_DISPATCH(RmsProp)(options, batch);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
