#pragma once

// The formulas of the dense optimizers for one element, for GPUs and their emulation.
//
// An update has the number of its state arrays (kStates), the constants of one step, and
//   T operator()(T parameter, T gradient, T (&state)[kMaxOptimStates]) const
// which updates the state and returns the new parameter. The gradient is already scaled, limited
// and negated (maximize), and has the weight decay added. Formulas and options are documented in
// kernels/optim/<name>.h. Operations and their order are those of the CPU's kernels, so the bits
// are equal where the CPU has fused multiply-adds, except those of NaN.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/numbers.h"
#include "kernels/host_device.h"
#include "kernels/optim/adadelta.h"
#include "kernels/optim/adagrad.h"
#include "kernels/optim/adam.h"
#include "kernels/optim/adamax.h"
#include "kernels/optim/arrays.h"
#include "kernels/optim/rmsprop.h"
#include "kernels/optim/rprop.h"
#include "kernels/optim/sgd.h"

namespace psd::kernels::cuda {

enum class Momentum { kNone, kPlain, kNesterov };

template <typename T, Momentum kMomentum>
struct SgdUpdate {
  static constexpr size_t kStates = kMomentum == Momentum::kNone ? 0 : 1;
  T minus_lr, momentum, gradient_share;

  SgdUpdate(const SgdOptions& options, int64_t step)
      : minus_lr(static_cast<T>(-options.lr)),
        momentum(static_cast<T>(options.momentum)),
        gradient_share(static_cast<T>(step == 1 ? 1 : 1 - options.dampening)) {}

  PSD_HOST_DEVICE T operator()(T parameter, T gradient, T (&state)[kMaxOptimStates]) const {
    T direction = gradient;
    if constexpr (kMomentum != Momentum::kNone) {
      state[0] = MulAdd(state[0], momentum, gradient * gradient_share);
      direction =
          kMomentum == Momentum::kNesterov ? MulAdd(state[0], momentum, gradient) : state[0];
    }
    return MulAdd(direction, minus_lr, parameter);
  }
};

template <typename T>
struct AdagradUpdate {
  static constexpr size_t kStates = 1;
  T minus_step, eps;

  AdagradUpdate(const AdagradOptions& options, int64_t step)
      : minus_step(
            static_cast<T>(-options.lr / (1 + static_cast<double>(step - 1) * options.lr_decay))),
        eps(static_cast<T>(options.eps)) {}

  PSD_HOST_DEVICE T operator()(T parameter, T gradient, T (&state)[kMaxOptimStates]) const {
    state[0] = MulAdd(gradient, gradient, state[0]);
    return MulAdd(gradient / (SquareRoot(state[0]) + eps), minus_step, parameter);
  }
};

template <typename T, bool kAmsgrad>
struct AdamUpdate {
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

  PSD_HOST_DEVICE T operator()(T parameter, T gradient, T (&state)[kMaxOptimStates]) const {
    state[0] = MulAdd(state[0], beta1, gradient * share1);
    state[1] = MulAdd(state[1], beta2, gradient * gradient * share2);
    T most = state[1];
    if constexpr (kAmsgrad) most = state[2] = MaxOrNan(state[1], state[2]);
    const T root = MulAdd(SquareRoot(most), inverse_root2, eps);
    return MulAdd(state[0] / root, minus_step, parameter * keep);
  }
};

template <typename T>
struct AdamaxUpdate {
  static constexpr size_t kStates = 2;
  T beta1, share1, beta2, eps, minus_step;

  AdamaxUpdate(const AdamaxOptions& options, int64_t step)
      : beta1(static_cast<T>(options.beta1)),
        share1(static_cast<T>(1 - options.beta1)),
        beta2(static_cast<T>(options.beta2)),
        eps(static_cast<T>(options.eps)),
        minus_step(static_cast<T>(-options.lr /
                                  (1 - std::pow(options.beta1, static_cast<double>(step))))) {}

  PSD_HOST_DEVICE T operator()(T parameter, T gradient, T (&state)[kMaxOptimStates]) const {
    state[0] = MulAdd(state[0], beta1, gradient * share1);
    state[1] = MaxOrNan(state[1] * beta2, Magnitude(gradient) + eps);
    return MulAdd(state[0] / state[1], minus_step, parameter);
  }
};

template <typename T>
struct AdadeltaUpdate {
  static constexpr size_t kStates = 2;
  T rho, share, eps, minus_lr;

  AdadeltaUpdate(const AdadeltaOptions& options, int64_t /*step*/)
      : rho(static_cast<T>(options.rho)),
        share(static_cast<T>(1 - options.rho)),
        eps(static_cast<T>(options.eps)),
        minus_lr(static_cast<T>(-options.lr)) {}

  PSD_HOST_DEVICE T operator()(T parameter, T gradient, T (&state)[kMaxOptimStates]) const {
    state[0] = MulAdd(state[0], rho, gradient * gradient * share);
    const T ratio = SquareRoot(state[1] + eps) / SquareRoot(state[0] + eps);
    const T delta = ratio * gradient;
    state[1] = MulAdd(state[1], rho, delta * delta * share);
    return MulAdd(delta, minus_lr, parameter);
  }
};

template <typename T, bool kMomentum, bool kCentered>
struct RmsPropUpdate {
  static constexpr size_t kStates = 1 + (kMomentum ? 1 : 0) + (kCentered ? 1 : 0);
  T minus_lr, alpha, share, eps, momentum;

  RmsPropUpdate(const RmsPropOptions& options, int64_t /*step*/)
      : minus_lr(static_cast<T>(-options.lr)),
        alpha(static_cast<T>(options.alpha)),
        share(static_cast<T>(1 - options.alpha)),
        eps(static_cast<T>(options.eps)),
        momentum(static_cast<T>(options.momentum)) {}

  PSD_HOST_DEVICE T operator()(T parameter, T gradient, T (&state)[kMaxOptimStates]) const {
    state[0] = MulAdd(state[0], alpha, gradient * gradient * share);
    T variance = state[0];
    if constexpr (kCentered) {
      T& mean = state[kMomentum ? 2 : 1];
      mean = MulAdd(mean, alpha, gradient * share);
      variance = MulAdd(-mean, mean, state[0]);
    }
    T direction = gradient / (SquareRoot(variance) + eps);
    if constexpr (kMomentum) state[1] = direction = MulAdd(state[1], momentum, direction);
    return MulAdd(direction, minus_lr, parameter);
  }
};

template <typename T>
struct RpropUpdate {
  static constexpr size_t kStates = 2;
  T etaminus, etaplus, least, most;

  RpropUpdate(const RpropOptions& options, int64_t /*step*/)
      : etaminus(static_cast<T>(options.etaminus)),
        etaplus(static_cast<T>(options.etaplus)),
        least(static_cast<T>(options.step_size_min)),
        most(static_cast<T>(options.step_size_max)) {}

  PSD_HOST_DEVICE T operator()(T parameter, T gradient, T (&state)[kMaxOptimStates]) const {
    const T agreement = gradient * state[0];
    const bool turned = agreement < 0;
    T size = state[1] * (turned ? etaminus : agreement > 0 ? etaplus : T{1});
    if (size < least) size = least;
    if (size > most) size = most;
    if (turned) gradient = 0;
    state[0] = gradient;
    state[1] = size;
    // Where the gradient is 0 the parameter stays; where it is NaN the parameter becomes NaN.
    T move = gradient == 0 ? T{0} : WithSign(size, gradient);
    if (IsNan(gradient)) move = gradient;
    return parameter - move;
  }
};

// The changes to a gradient before the update uses it.
struct GradientTerms {
  bool maximize = false;    // whether the gradient is negated
  double weight_decay = 0;  // weight_decay * parameter is added
};

template <typename Options>
GradientTerms TermsOf(const Options& options) {
  return {options.maximize, options.weight_decay};
}
inline GradientTerms TermsOf(const AdamOptions& options) {
  return {options.maximize, options.decoupled_decay ? 0 : options.weight_decay};
}
inline GradientTerms TermsOf(const RpropOptions& options) {
  return {options.maximize, 0};
}

// WithUpdate calls f with the update of step number `step` that the options ask for. T is the type
// of the state, float or double.
template <typename T, typename F>
void WithUpdate(const SgdOptions& options, int64_t step, const F& f) {
  if (options.momentum == 0) {
    f(SgdUpdate<T, Momentum::kNone>(options, step));
  } else if (options.nesterov) {
    f(SgdUpdate<T, Momentum::kNesterov>(options, step));
  } else {
    f(SgdUpdate<T, Momentum::kPlain>(options, step));
  }
}
template <typename T, typename F>
void WithUpdate(const AdagradOptions& options, int64_t step, const F& f) {
  f(AdagradUpdate<T>(options, step));
}
template <typename T, typename F>
void WithUpdate(const AdamOptions& options, int64_t step, const F& f) {
  options.amsgrad ? f(AdamUpdate<T, true>(options, step)) : f(AdamUpdate<T, false>(options, step));
}
template <typename T, typename F>
void WithUpdate(const AdamaxOptions& options, int64_t step, const F& f) {
  f(AdamaxUpdate<T>(options, step));
}
template <typename T, typename F>
void WithUpdate(const AdadeltaOptions& options, int64_t step, const F& f) {
  f(AdadeltaUpdate<T>(options, step));
}
template <typename T, typename F>
void WithUpdate(const RmsPropOptions& options, int64_t step, const F& f) {
  if (options.momentum != 0) {
    options.centered ? f(RmsPropUpdate<T, true, true>(options, step))
                     : f(RmsPropUpdate<T, true, false>(options, step));
  } else {
    options.centered ? f(RmsPropUpdate<T, false, true>(options, step))
                     : f(RmsPropUpdate<T, false, false>(options, step));
  }
}
template <typename T, typename F>
void WithUpdate(const RpropOptions& options, int64_t step, const F& f) {
  f(RpropUpdate<T>(options, step));
}

}  // namespace psd::kernels::cuda
