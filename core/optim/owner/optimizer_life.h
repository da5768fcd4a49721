#pragma once

// The life of a named optimizer, which all its parts on several owners share. It shows when a part
// was lost with its owner. Pure logic.
//
// A life begins when the optimizer is created, and when it is loaded. Every part knows the life's
// id, and all owners of the optimizer with their incarnations. A restarted owner has another
// incarnation and no part, so the other parts show that something is missing.
//
// A part is live until a load begins to change it. Then it is loading, in a life that has the
// load's id, and it is live again when the load begins the next life. It ends when its name is
// dropped or the part is replaced. No step is applied to a part that is loading or has ended.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/ids.h"

namespace psd::optim {

struct LifeOwner {
  std::string name;
  Incarnation incarnation = 0;
};

enum class LifeStage {
  kLive,
  kLoading,
  kEnded,  // for ever
};

struct OptimizerLife {
  GlobalId id;
  std::vector<LifeOwner> owners;  // all owners of the optimizer; not known while it is loading
  LifeStage stage = LifeStage::kLive;
};

// An owner's report on its part of an optimizer.
struct PartReport {
  LifeOwner owner;
  bool hosted = false;  // whether it has a part
  OptimizerLife life;
  uint64_t steps = 0;  // steps that the part has accepted
};

// Returns the report of the owner called `name`, or null if there is none.
const PartReport* FindReport(absl::Span<const PartReport> reports, const std::string& name);

// Checks that every part of optimizer `name` among `reports` is live, that all other parts of its
// life exist, and that their owners have not been restarted since. Errors: FAILED_PRECONDITION
// naming the owner, what it lacks, and the remedy.
absl::Status CheckWhole(const std::string& name, absl::Span<const PartReport> reports);

// The result of judging the owners' reports for a trainer that names the optimizer over exactly
// these owners.
struct LifeVerdict {
  enum class Kind {
    kJoin,         // the trainer joins `life`, or is the first one if that has no id
    kLost,         // only some parts of the optimizer are left
    kLoading,      // a load has not finished
    kOtherOwners,  // the optimizer was created over parameters on other owners
  };
  Kind kind = Kind::kJoin;
  GlobalId life;
  absl::Status error;  // FAILED_PRECONDITION with the remedy, unless kJoin
};

// Judges the reports. Parts may be missing as long as nothing was stepped: they are being created.
LifeVerdict JudgeLife(const std::string& name, absl::Span<const PartReport> reports);

// The reports of all owners at one time, and the verdict on them.
struct LifeLook {
  std::vector<PartReport> reports;
  LifeVerdict verdict;
};

// Calls `ask` for reports, and judges them. Owners answer at different moments, so one may answer
// before another trainer makes its part there, and the next one after that trainer's first step.
// Therefore an error is believed only when two looks in a row find the same parts: an optimizer
// that was stepped at the time of the first look is complete at the second. Errors: those of `ask`;
// UNAVAILABLE when the parts change from look to look.
absl::StatusOr<LifeLook> LookAtLife(
    const std::string& name, absl::FunctionRef<absl::StatusOr<std::vector<PartReport>>()> ask);

// Checks that a step for the life `expected` may be applied in the life `now`. Without an id in
// `expected` it may. Errors: FAILED_PRECONDITION if the optimizer is being loaded, or was loaded,
// dropped or begun afresh.
absl::Status CheckLife(GlobalId expected, const OptimizerLife& now);

// Checks that the load that gave the life `load` to a part may still change it in the life `now`.
// Without an id, `load` stands for any load. Errors: FAILED_PRECONDITION if another load has begun,
// or the part was dropped.
absl::Status CheckLoad(GlobalId load, const OptimizerLife& now);

// Returns the error for an optimizer whose part on `owner` was lost when the owner was restarted.
absl::Status RestartedOwner(const std::string& name, const std::string& owner);

}  // namespace psd::optim
