#pragma once

// Learning rate schedules: pure functions of the number of accepted steps.

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace psd::optim {

// Computes the learning rate of a step from `base`, the learning rate in the options of a group,
// and t = 0, 1, 2, …, the number of steps accepted before. The formulas are the closed forms of
// PyTorch's torch.optim.lr_scheduler:
//
//   constant      base
//   step          base * gamma^(t div period)                                          StepLR
//   exponential   base * gamma^t                                                  ExponentialLR
//   cosine        lowest + (base - lowest) * (1 + cos(pi * t / period)) / 2   CosineAnnealingLR
//   one cycle     up from base / initial_divisor to base in the first rise * period steps, then
//                 down to base / (initial_divisor * final_divisor) at step period - 1, each along
//                 half a cosine or (`linear`) a line; the last rate stays afterwards  OneCycleLR
//
// With cycle_momentum a one-cycle schedule also moves the momentum, against the rate: from
// highest_momentum down to lowest_momentum while the rate rises, and back up while the rate falls.
// This value replaces the option "beta1" or, for types without one, "momentum". The replaced option
// must be above 0.
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
  double rise = 0.3;    // one cycle: the share of `period` in which the rate rises
  // The next six fields are used by one cycle only.
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
  // Returns this schedule preceded by a linear warm-up of `steps` steps.
  Schedule WithWarmup(uint64_t steps, double start = 1.0 / 3) const;

  // Errors: INVALID_ARGUMENT naming the field, its value and its range.
  absl::Status Check() const;
  bool IsConstant() const { return kind == Kind::kConstant && warmup_steps == 0; }
  // Requires: Check() is OK.
  double LearningRate(double base, uint64_t step) const;
  // Returns the momentum of step `step`. Requires: cycle_momentum, and Check() is OK.
  double Momentum(uint64_t step) const;
  // Returns, for example, "cosine(period=100, lowest=0) after warmup(10, from 0.1)". Two schedules
  // have the same text if and only if they have the same effect: fields that the kind does not use
  // are left out.
  std::string ToString() const;
};

}  // namespace psd::optim
