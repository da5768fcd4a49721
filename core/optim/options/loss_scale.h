#pragma once

// Dynamic loss scaling, by the rules of torch.cuda.amp.GradScaler: pure, no effects.

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace psd::optim {

// How an optimizer scales losses. `initial` 0: it does not.
struct LossScaling {
  double initial = 0;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  uint64_t growth_interval = 2000;  // steps in a row without overflow

  // PyTorch's defaults: from 65536.
  static LossScaling Dynamic(double initial = 65536) { return {initial, 2, 0.5, 2000}; }
  bool enabled() const { return initial != 0; }
  // Errors: INVALID_ARGUMENT naming the field, its value and its range.
  absl::Status Check() const;
  // "off", "dynamic(65536, growth=2, backoff=0.5, interval=2000)".
  std::string ToString() const;
};

// The scale as it moves. Thread-compatible.
class LossScale {
 public:
  explicit LossScale(const LossScaling& rules) : rules_(rules), scale_(rules.initial) {}

  double scale() const { return scale_; }
  uint64_t good_steps() const { return good_steps_; }  // in a row, with this scale

  // A step whose loss was multiplied by `used` has overflowed, or not. Steps that were scaled
  // otherwise than the next one will be say nothing: with several trainers some are late.
  void Record(double used, bool overflow);
  // After loading: goes on from `scale`, after so many good steps with it.
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
