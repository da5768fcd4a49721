#include "core/optim/options/loss_scale.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/optim/functional/optimizer_spec.h"

namespace psd::optim {
namespace {

// Bounds of the scale. Above the largest it would overflow f32; below the smallest the scaled
// gradients would vanish.
constexpr double kSmallest = 1.0 / (uint64_t{1} << 32);
constexpr double kLargest = 0x1p127;

absl::Status OutOfRange(const char* field, double value, const char* range) {
  return absl::InvalidArgumentError(absl::StrCat("loss scaling: ", field, " = ",
                                                 ShortestText(value), ", but it must be ", range));
}

}  // namespace

absl::Status LossScaling::Check() const {
  if (!enabled()) return absl::OkStatus();
  if (!(initial >= kSmallest && initial <= kLargest))
    return OutOfRange("initial", initial, "2^-32 to 2^127");
  if (!(growth_factor >= 1 && growth_factor <= kLargest))
    return OutOfRange("growth_factor", growth_factor, "at least 1");
  if (!(backoff_factor > 0 && backoff_factor < 1))
    return OutOfRange("backoff_factor", backoff_factor, "above 0 and below 1");
  if (growth_interval == 0) return OutOfRange("growth_interval", 0, "at least 1");
  return absl::OkStatus();
}

std::string LossScaling::ToString() const {
  if (!enabled()) return "off";
  return absl::StrCat("dynamic(", ShortestText(initial), ", growth=", ShortestText(growth_factor),
                      ", backoff=", ShortestText(backoff_factor), ", interval=", growth_interval,
                      ")");
}

void LossScale::Record(double used, bool overflow) {
  if (used != scale_) return;
  if (overflow) {
    scale_ = std::max(scale_ * rules_.backoff_factor, kSmallest);
    good_steps_ = 0;
    return;
  }
  if (++good_steps_ < rules_.growth_interval) return;
  good_steps_ = 0;
  const double grown = scale_ * rules_.growth_factor;
  if (grown <= kLargest) scale_ = grown;
}

}  // namespace psd::optim
