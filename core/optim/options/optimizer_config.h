#pragma once

// The settings of an optimizer as a whole. All trainers that share an optimizer must give the same.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core/optim/options/loss_scale.h"
#include "core/optim/options/schedule.h"

namespace psd::optim {

// Says when the steps that several trainers take on one optimizer are applied.
struct UpdateMode {
  enum class Kind : uint8_t {
    // Each step is applied on its own, as it comes.
    kAsynchronous = 1,
    // Steps are applied in rounds. A round has one step of each of `trainers` trainers and applies
    // them together as one.
    kSynchronous = 2,
    // Each step is applied on its own, unless one of its gradients was computed from a version that
    // is more than `staleness` behind the current one.
    kBoundedStaleness = 3,
  };
  enum class Reduction : uint8_t { kMean = 1, kSum = 2 };
  enum class WhenStale : uint8_t {
    // A gradient that is too old is refused with FAILED_PRECONDITION; nothing has changed.
    kRefuse = 1,
    // As kRefuse. In addition a step waits while other trainers compute gradients that it would
    // make too old.
    kWait = 2,
  };
  Kind kind = Kind::kAsynchronous;
  uint32_t trainers = 0;                      // synchronous
  Reduction reduction = Reduction::kMean;     // synchronous: how the trainers' gradients are joined
  uint64_t staleness = 0;                     // bounded staleness: the bound, in versions
  WhenStale when_stale = WhenStale::kRefuse;  // bounded staleness
  // Bounded staleness: whether gradients are accepted that do not say from which version they were
  // computed. If false, they are refused as too old.
  bool allow_unknown_versions = false;

  static UpdateMode Asynchronous() { return {}; }
  static UpdateMode Synchronous(uint32_t trainers, Reduction reduction = Reduction::kMean);
  static UpdateMode BoundedStaleness(uint64_t staleness, WhenStale when_stale = WhenStale::kRefuse);

  // Returns this mode with allow_unknown_versions.
  UpdateMode WithUnknownVersions() const;

  // Returns the factor for the sum of the gradients of `trainers_in_step` trainers: 1 /
  // trainers_in_step for a mean, 1 for a sum and for other modes.
  double ReductionScale(size_t trainers_in_step) const;
  // Errors: INVALID_ARGUMENT naming the field, its value and its range.
  absl::Status Check() const;
  std::string ToString() const;  // "asynchronous", "synchronous(3, mean)", …
};

// The settings that hold for all groups of an optimizer. Each group also has options of its own.
struct OptimizerSettings {
  Schedule schedule;
  LossScaling loss_scaling;
  UpdateMode mode;

  // Errors: INVALID_ARGUMENT naming the field, its value and its range.
  absl::Status Check() const;
  // Returns an empty text for the defaults. Two settings have the same text if and only if they
  // have the same effect: fields that the chosen schedule, scaling or mode does not use are left
  // out.
  std::string ToString() const;
};

// The most trainers that a synchronous optimizer may have.
inline constexpr uint32_t kMaxRoundTrainers = 65'536;

}  // namespace psd::optim
