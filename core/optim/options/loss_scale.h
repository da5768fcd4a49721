#pragma once

// Dynamic loss scaling by the rules of torch.cuda.amp.GradScaler. Pure logic without effects.

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace psd::optim {

// The rules by which an optimizer scales losses. If `initial` is 0, losses are not scaled.
struct LossScaling {
  double initial = 0;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  uint64_t growth_interval = 2000;  // steps in a row without overflow

  // Returns PyTorch's defaults, whose scale starts at 65536.
  static LossScaling Dynamic(double initial = 65536) { return {initial, 2, 0.5, 2000}; }
  bool enabled() const { return initial != 0; }
  // Errors: INVALID_ARGUMENT naming the field, its value and its range.
  absl::Status Check() const;
  // Returns "off" or, for example, "dynamic(65536, growth=2, backoff=0.5, interval=2000)".
  std::string ToString() const;
};

// The present scale of one optimizer, which grows after good steps and shrinks after an overflow.
// Thread-compatible.
class LossScale {
 public:
  explicit LossScale(const LossScaling& rules) : rules_(rules), scale_(rules.initial) {}

  double scale() const { return scale_; }
  uint64_t good_steps() const { return good_steps_; }  // in a row, with this scale

  // Records the outcome of a step whose loss was multiplied by `used`. A step with another scale
  // than the present one is ignored: with several trainers, some steps arrive after the scale has
  // changed.
  void Record(double used, bool overflow);
  // Continues from saved values: `scale`, and the good steps that had been taken with it.
  void Restore(double scale, uint64_t good_steps) {
    scale_ = scale;
    good_steps_ = good_steps;
  }

 private:
  const LossScaling rules_;
  double scale_;
  uint64_t good_steps_ = 0;
};

}  // namespace psd::optim
