#include "core/optim/steps/step_decision.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace psd::optim {
namespace {

// The same constant as in torch.nn.utils.clip_grad_norm_.
constexpr double kNormEpsilon = 1e-6;

double BaseScale(const StepWishes& wishes) {
  const double loss = wishes.loss_scale == 0 ? 1 : 1 / wishes.loss_scale;
  return wishes.mean ? loss / static_cast<double>(wishes.contexts) : loss;
}

}  // namespace

absl::Status StepWishes::Check() const {
  const auto refuse = [](const char* name, double value, const char* range) {
    return absl::InvalidArgumentError(absl::StrCat(name, " = ", value, ", but it must be ", range));
  };
  if (!(clip_value >= 0)) return refuse("clip_value", clip_value, "at least 0");
  if (!(clip_norm >= 0)) return refuse("clip_norm", clip_norm, "at least 0");
  const bool usable = loss_scale == 0 || (std::isnormal(loss_scale) && loss_scale > 0 &&
                                          std::isfinite(1 / loss_scale));
  if (!usable) return refuse("loss_scale", loss_scale, "a finite number above 0");
  if (contexts == 0) return absl::InvalidArgumentError("a step needs at least one context");
  return absl::OkStatus();
}

bool StepWishes::NeedsMeasure() const {
  return detect_overflow || std::isfinite(clip_norm);
}

StepDecision DecideStep(const StepWishes& wishes, absl::Span<const double> sums_of_squares) {
  StepDecision decision;
  decision.terms.gradient_scale = BaseScale(wishes);
  decision.terms.gradient_limit = wishes.clip_value;
  if (!wishes.NeedsMeasure()) return decision;
  double sum = 0;
  for (double each : sums_of_squares) sum += each;
  decision.gradient_norm = std::sqrt(sum) * decision.terms.gradient_scale;
  if (wishes.detect_overflow) {
    decision.terms.loss_scale = wishes.loss_scale;
    decision.terms.overflow = !std::isfinite(sum);
  }
  if (std::isfinite(wishes.clip_norm) && std::isfinite(sum)) {
    decision.terms.gradient_scale *=
        std::min(1.0, wishes.clip_norm / (decision.gradient_norm + kNormEpsilon));
  }
  return decision;
}

}  // namespace psd::optim
