#include "kernels/optim/adamax.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optim/adamax.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/optim/optim-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

template <typename T>
struct AdamaxUpdate {
  using Number = T;
  static constexpr size_t kStates = 2;
  T beta1, share1, beta2, eps, minus_step;

  AdamaxUpdate(const AdamaxOptions& options, int64_t step)
      : beta1(static_cast<T>(options.beta1)),
        share1(static_cast<T>(1 - options.beta1)),
        beta2(static_cast<T>(options.beta2)),
        eps(static_cast<T>(options.eps)),
        minus_step(static_cast<T>(-options.lr /
                                  (1 - std::pow(options.beta1, static_cast<double>(step))))) {}

  template <class D, class V>
  HWY_INLINE V operator()(D d, V parameter, V gradient, V& m, V& u, V&) const {
    m = hn::MulAdd(m, hn::Set(d, beta1), hn::Mul(gradient, hn::Set(d, share1)));
    u = MaxOrNaN(hn::Mul(u, hn::Set(d, beta2)), hn::Add(hn::Abs(gradient), hn::Set(d, eps)));
    return hn::MulAdd(hn::Div(m, u), hn::Set(d, minus_step), parameter);
  }
};

void Adamax(const AdamaxOptions& options, const OptimBatch& batch) {
  const GradientTerms terms = {options.maximize, options.weight_decay};
  WithNumber(batch.type, [&](auto number) HWY_ATTR {
    Sweep(AdamaxUpdate<decltype(number)>(options, batch.step), terms, batch);
  });
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(Adamax);

void AdamaxStep(const AdamaxOptions& options, const OptimBatch& batch) {
  HWY_DYNAMIC_DISPATCH(Adamax)(options, batch);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
