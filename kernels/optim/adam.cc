#include "kernels/optim/adam.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optim/adam.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/optim/optim-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

template <typename T, bool kAmsgrad>
struct AdamUpdate {
  using Number = T;
  static constexpr size_t kStates = kAmsgrad ? 3 : 2;
  T keep, beta1, beta2, share1, share2, minus_step, inverse_root2, eps;

  AdamUpdate(const AdamOptions& options, int64_t step) {
    const double t = static_cast<double>(step);
    const double correction1 = 1 - std::pow(options.beta1, t);
    const double correction2 = 1 - std::pow(options.beta2, t);
    keep = static_cast<T>(options.decoupled_decay ? 1 - options.lr * options.weight_decay : 1);
    beta1 = static_cast<T>(options.beta1);
    beta2 = static_cast<T>(options.beta2);
    share1 = static_cast<T>(1 - options.beta1);
    share2 = static_cast<T>(1 - options.beta2);
    minus_step = static_cast<T>(-options.lr / correction1);
    inverse_root2 = static_cast<T>(1 / std::sqrt(correction2));
    eps = static_cast<T>(options.eps);
  }

  template <class D, class V>
  HWY_INLINE V operator()(D d, V parameter, V gradient, V& m, V& v, V& x) const {
    m = hn::MulAdd(m, hn::Set(d, beta1), hn::Mul(gradient, hn::Set(d, share1)));
    v = hn::MulAdd(v, hn::Set(d, beta2), hn::Mul(hn::Mul(gradient, gradient), hn::Set(d, share2)));
    V most = v;
    if constexpr (kAmsgrad) most = x = MaxOrNaN(v, x);
    const V root = hn::MulAdd(hn::Sqrt(most), hn::Set(d, inverse_root2), hn::Set(d, eps));
    return hn::MulAdd(hn::Div(m, root), hn::Set(d, minus_step),
                      hn::Mul(parameter, hn::Set(d, keep)));
  }
};

void Adam(const AdamOptions& options, const OptimBatch& batch) {
  const GradientTerms terms = {options.maximize,
                               options.decoupled_decay ? 0 : options.weight_decay};
  WithNumber(batch.type, [&](auto number) HWY_ATTR {
    using T = decltype(number);
    if (options.amsgrad) {
      Sweep(AdamUpdate<T, true>(options, batch.step), terms, batch);
    } else {
      Sweep(AdamUpdate<T, false>(options, batch.step), terms, batch);
    }
  });
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(Adam);

void AdamStep(const AdamOptions& options, const OptimBatch& batch) {
  HWY_DYNAMIC_DISPATCH(Adam)(options, batch);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
