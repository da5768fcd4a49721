#pragma once

// The life of a named optimizer: what its parts on several owners have in common, so that a part
// that was lost with its owner is noticed. Pure.
//
// A life begins when the optimizer is created, and when it is loaded. Every part knows the life's
// id, and all owners of the optimizer with their incarnations. A restarted owner has another
// incarnation and no part, so the others' parts tell that something is missing.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/ids.h"

namespace psd::optim {

struct LifeOwner {
  std::string name;
  Incarnation incarnation = 0;
};

struct OptimizerLife {
  GlobalId id;
  std::vector<LifeOwner> owners;  // all of the optimizer's; none: a load of it has not finished
};

// What an owner says of its part of an optimizer.
struct PartReport {
  LifeOwner owner;
  bool hosted = false;  // false: it has no part
  OptimizerLife life;
  uint64_t steps = 0;  // accepted
};

// The report of the owner called `name`, or null.
const PartReport* FindReport(absl::Span<const PartReport> reports, const std::string& name);

// Whether every part among `reports` on optimizer `name` has all others of its life beside it, on
// owners that have lived on since.
// Errors: FAILED_PRECONDITION naming the owner, what is missing there, and the remedy.
absl::Status CheckWhole(const std::string& name, absl::Span<const PartReport> reports);

// The life that a trainer joins who names the optimizer over exactly the owners of `reports`; none
// if it is the first. Parts may be missing as long as nothing was stepped: they are being created.
// Errors: as CheckWhole; FAILED_PRECONDITION when the optimizer was created over other owners.
absl::StatusOr<GlobalId> LifeToJoin(const std::string& name, absl::Span<const PartReport> reports);

// Whether a step that was meant for `expected` may be applied in `now`.
// Errors: FAILED_PRECONDITION: the optimizer was loaded or begun afresh since.
absl::Status CheckLife(GlobalId expected, const OptimizerLife& now);

// The error for an optimizer whose part on `owner` has gone with the owner's last incarnation.
absl::Status RestartedOwner(const std::string& name, const std::string& owner);

}  // namespace psd::optim
