#include "kernels/optim/sgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optim/sgd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/optim/optim-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

enum class Momentum { kNone, kPlain, kNesterov };

template <typename T, Momentum kMomentum>
struct SgdUpdate {
  using Number = T;
  static constexpr size_t kStates = kMomentum == Momentum::kNone ? 0 : 1;
  T minus_lr, momentum, gradient_share;

  SgdUpdate(const SgdOptions& options, int64_t step)
      : minus_lr(static_cast<T>(-options.lr)),
        momentum(static_cast<T>(options.momentum)),
        gradient_share(static_cast<T>(step == 1 ? 1 : 1 - options.dampening)) {}

  template <class D, class V>
  HWY_INLINE V operator()(D d, V parameter, V gradient, V& buffer, V&, V&) const {
    V direction = gradient;
    if constexpr (kMomentum != Momentum::kNone) {
      const V mu = hn::Set(d, momentum);
      buffer = hn::MulAdd(buffer, mu, hn::Mul(gradient, hn::Set(d, gradient_share)));
      direction = kMomentum == Momentum::kNesterov ? hn::MulAdd(buffer, mu, gradient) : buffer;
    }
    return hn::MulAdd(direction, hn::Set(d, minus_lr), parameter);
  }
};

void Sgd(const SgdOptions& options, const OptimBatch& batch) {
  const GradientTerms terms = {options.maximize, options.weight_decay};
  WithNumber(batch.type, [&](auto number) HWY_ATTR {
    using T = decltype(number);
    if (options.momentum == 0) {
      Sweep(SgdUpdate<T, Momentum::kNone>(options, batch.step), terms, batch);
    } else if (options.nesterov) {
      Sweep(SgdUpdate<T, Momentum::kNesterov>(options, batch.step), terms, batch);
    } else {
      Sweep(SgdUpdate<T, Momentum::kPlain>(options, batch.step), terms, batch);
    }
  });
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(Sgd);

void SgdStep(const SgdOptions& options, const OptimBatch& batch) {
  HWY_DYNAMIC_DISPATCH(Sgd)(options, batch);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
