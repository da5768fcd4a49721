#pragma once

// Learning rate schedules: pure functions of the number of accepted steps.

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace psd::optim {

// The learning rate of step t = 0, 1, 2, … (t: the steps accepted before it) from the learning
// rate `base` that the options of a group say. Formulas are the closed forms of PyTorch's
// torch.optim.lr_scheduler:
//
//   constant      base
//   step          base * gamma^(t div period)                                          StepLR
//   exponential   base * gamma^t                                                  ExponentialLR
//   cosine        lowest + (base - lowest) * (1 + cos(pi * t / period)) / 2   CosineAnnealingLR
//   one cycle     up from base / initial_divisor to base in the first `rise` of `period` steps,
//                 then down to base / (initial_divisor * final_divisor), both as half a cosine or
//                 as a line; that last rate stays afterwards                         OneCycleLR
//
// With cycle_momentum a one-cycle schedule also moves the momentum the other way: from
// highest_momentum down to lowest_momentum while the rate rises, and back. It takes the place of
// the option "momentum", which must be above 0, or of "beta1" where there is one.
//
// A linear warm-up may come before any of them: for t < warmup_steps the rate is
// base * (warmup_start + (1 - warmup_start) * t / warmup_steps), then the schedule starts with its
// own t = 0 (LinearLR, SequentialLR).
struct Schedule {
  enum class Kind : uint8_t {
    kConstant = 1,
    kStep = 2,
    kExponential = 3,
    kCosine = 4,
    kOneCycle = 5,
  };
  Kind kind = Kind::kConstant;
  uint64_t period = 1;  // in steps: step, cosine, one cycle
  double gamma = 1;     // step, exponential
  double lowest = 0;    // cosine: a learning rate
  double rise = 0.3;    // one cycle, as the next three
  double initial_divisor = 25;
  double final_divisor = 1e4;
  bool linear = false;
  bool cycle_momentum = false;
  double lowest_momentum = 0.85;
  double highest_momentum = 0.95;
  uint64_t warmup_steps = 0;
  double warmup_start = 1.0 / 3;

  static Schedule Constant() { return {}; }
  static Schedule Step(uint64_t period, double gamma = 0.1);
  static Schedule Exponential(double gamma);
  static Schedule Cosine(uint64_t period, double lowest = 0);
  static Schedule OneCycle(uint64_t period);
  // This schedule after a warm-up.
  Schedule WithWarmup(uint64_t steps, double start = 1.0 / 3) const;

  // Errors: INVALID_ARGUMENT naming the field, its value and its range.
  absl::Status Check() const;
  bool IsConstant() const { return kind == Kind::kConstant && warmup_steps == 0; }
  // Requires: Check() is OK.
  double LearningRate(double base, uint64_t step) const;
  // Of step `step`. Requires: cycle_momentum, Check() is OK.
  double Momentum(uint64_t step) const;
  // "cosine(period=100, lowest=0) after warmup(10, from 0.1)": schedules print equal if and only
  // if they are.
  std::string ToString() const;
};

}  // namespace psd::optim
