#include "kernels/optim/adadelta.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optim/adadelta.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/optim/optim-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

template <typename T>
struct AdadeltaUpdate {
  using Number = T;
  static constexpr size_t kStates = 2;
  T rho, share, eps, minus_lr;

  explicit AdadeltaUpdate(const AdadeltaOptions& options)
      : rho(static_cast<T>(options.rho)),
        share(static_cast<T>(1 - options.rho)),
        eps(static_cast<T>(options.eps)),
        minus_lr(static_cast<T>(-options.lr)) {}

  template <class D, class V>
  HWY_INLINE V operator()(D d, V parameter, V gradient, V& q, V& a, V&) const {
    const V part = hn::Set(d, share);
    q = hn::MulAdd(q, hn::Set(d, rho), hn::Mul(hn::Mul(gradient, gradient), part));
    const V more = hn::Set(d, eps);
    const V ratio = hn::Div(hn::Sqrt(hn::Add(a, more)), hn::Sqrt(hn::Add(q, more)));
    const V delta = hn::Mul(ratio, gradient);
    a = hn::MulAdd(a, hn::Set(d, rho), hn::Mul(hn::Mul(delta, delta), part));
    return hn::MulAdd(delta, hn::Set(d, minus_lr), parameter);
  }
};

void Adadelta(const AdadeltaOptions& options, const OptimBatch& batch) {
  const GradientTerms terms = {options.maximize, options.weight_decay};
  WithNumber(batch.type, [&](auto number) HWY_ATTR {
    Sweep(AdadeltaUpdate<decltype(number)>(options), terms, batch);
  });
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(Adadelta);

void AdadeltaStep(const AdadeltaOptions& options, const OptimBatch& batch) {
  HWY_DYNAMIC_DISPATCH(Adadelta)(options, batch);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
