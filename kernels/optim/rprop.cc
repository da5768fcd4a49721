#include "kernels/optim/rprop.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optim/rprop.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/optim/optim-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

template <typename T>
struct RpropUpdate {
  using Number = T;
  static constexpr size_t kStates = 2;
  T etaminus, etaplus, least, most;

  explicit RpropUpdate(const RpropOptions& options)
      : etaminus(static_cast<T>(options.etaminus)),
        etaplus(static_cast<T>(options.etaplus)),
        least(static_cast<T>(options.step_size_min)),
        most(static_cast<T>(options.step_size_max)) {}

  template <class D, class V>
  HWY_INLINE V operator()(D d, V parameter, V gradient, V& previous, V& size, V&) const {
    const V zero = hn::Zero(d);
    const V agreement = hn::Mul(gradient, previous);
    const auto turned = hn::Lt(agreement, zero);
    V growth = hn::IfThenElse(hn::Gt(agreement, zero), hn::Set(d, etaplus), hn::Set(d, T{1}));
    growth = hn::IfThenElse(turned, hn::Set(d, etaminus), growth);
    size = hn::Mul(size, growth);
    size = hn::IfThenElse(hn::Lt(size, hn::Set(d, least)), hn::Set(d, least), size);
    size = hn::IfThenElse(hn::Gt(size, hn::Set(d, most)), hn::Set(d, most), size);
    previous = gradient = hn::IfThenElse(turned, zero, gradient);
    // Where the gradient is 0 the parameter stays; where it is NaN the parameter becomes NaN.
    V move = hn::IfThenElse(hn::Eq(gradient, zero), zero, hn::CopySign(size, gradient));
    move = hn::IfThenElse(hn::IsNaN(gradient), gradient, move);
    return hn::Sub(parameter, move);
  }
};

void Rprop(const RpropOptions& options, const OptimBatch& batch) {
  const GradientTerms terms = {options.maximize, 0};
  WithNumber(batch.type, [&](auto number) HWY_ATTR {
    Sweep(RpropUpdate<decltype(number)>(options), terms, batch);
  });
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(Rprop);

void RpropStep(const RpropOptions& options, const OptimBatch& batch) {
  HWY_DYNAMIC_DISPATCH(Rprop)(options, batch);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
