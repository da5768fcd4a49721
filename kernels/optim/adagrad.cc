#include "kernels/optim/adagrad.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optim/adagrad.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/optim/optim-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

template <typename T>
struct AdagradUpdate {
  using Number = T;
  static constexpr size_t kStates = 1;
  T minus_step, eps;

  AdagradUpdate(const AdagradOptions& options, int64_t step)
      : minus_step(
            static_cast<T>(-options.lr / (1 + static_cast<double>(step - 1) * options.lr_decay))),
        eps(static_cast<T>(options.eps)) {}

  template <class D, class V>
  HWY_INLINE V operator()(D d, V parameter, V gradient, V& sum, V&, V&) const {
    sum = hn::MulAdd(gradient, gradient, sum);
    const V root = hn::Add(hn::Sqrt(sum), hn::Set(d, eps));
    return hn::MulAdd(hn::Div(gradient, root), hn::Set(d, minus_step), parameter);
  }
};

void Adagrad(const AdagradOptions& options, const OptimBatch& batch) {
  const GradientTerms terms = {options.maximize, options.weight_decay};
  WithNumber(batch.type, [&](auto number) HWY_ATTR {
    Sweep(AdagradUpdate<decltype(number)>(options, batch.step), terms, batch);
  });
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(Adagrad);

void AdagradStep(const AdagradOptions& options, const OptimBatch& batch) {
  HWY_DYNAMIC_DISPATCH(Adagrad)(options, batch);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
