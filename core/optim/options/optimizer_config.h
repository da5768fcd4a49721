#pragma once

// What an optimizer is, besides its parameters: what all who share one must agree on.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core/optim/options/loss_scale.h"
#include "core/optim/options/schedule.h"

namespace psd::optim {

// When steps of several trainers on one optimizer are applied.
struct UpdateMode {
  enum class Kind : uint8_t {
    // Each step on its own, as it comes.
    kAsynchronous = 1,
    // In rounds: one step of each of `trainers` trainers, applied together as one.
    kSynchronous = 2,
    // Each step on its own, but for gradients of versions that are more than `staleness` behind.
    kBoundedStaleness = 3,
  };
  enum class Reduction : uint8_t { kMean = 1, kSum = 2 };
  enum class WhenStale : uint8_t {
    // A gradient that is too old is refused with FAILED_PRECONDITION; nothing has changed.
    kRefuse = 1,
    // Besides, a step waits while it would make gradients too old that others still compute.
    kWait = 2,
  };
  Kind kind = Kind::kAsynchronous;
  uint32_t trainers = 0;                      // synchronous
  Reduction reduction = Reduction::kMean;     // synchronous: of the trainers' gradients
  uint64_t staleness = 0;                     // bounded staleness: versions
  WhenStale when_stale = WhenStale::kRefuse;  // bounded staleness
  // Bounded staleness: whether a gradient is taken that does not say which version it was computed
  // from. Without it such a gradient counts as too old.
  bool allow_unknown_versions = false;

  static UpdateMode Asynchronous() { return {}; }
  static UpdateMode Synchronous(uint32_t trainers, Reduction reduction = Reduction::kMean);
  static UpdateMode BoundedStaleness(uint64_t staleness, WhenStale when_stale = WhenStale::kRefuse);

  // This mode, but gradients of unknown versions are taken.
  UpdateMode WithUnknownVersions() const;

  // What the added up gradients of so many trainers are multiplied by.
  double ReductionScale(size_t trainers_in_step) const;
  // Errors: INVALID_ARGUMENT naming the field, its value and its range.
  absl::Status Check() const;
  std::string ToString() const;  // "asynchronous", "synchronous(3, mean)", …
};

// What holds for the whole optimizer, beside the options of its groups.
struct OptimizerSettings {
  Schedule schedule;
  LossScaling loss_scaling;
  UpdateMode mode;

  // Errors: INVALID_ARGUMENT naming the field, its value and its range.
  absl::Status Check() const;
  // Empty for the defaults; settings print equal if and only if they are.
  std::string ToString() const;
};

// Trainers of one synchronous optimizer, at most.
inline constexpr uint32_t kMaxRoundTrainers = 65'536;

}  // namespace psd::optim
