#pragma once

// Applies the records of a journal to an owner.

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/autograd/operators.h"
#include "core/base/ids.h"
#include "core/change/change.h"
#include "core/change/changes.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"
#include "core/store/store.h"
#include "proto/psd/v1/journal.pb.h"

namespace psd::change {

// Values keep their ids. Values whose names are dropped, and private optimizers, live until the
// replay is destroyed, because later records may change them. Nothing else may change the owner
// meanwhile. Confined to one thread.
class Replay {
 public:
  // The parts of the owner. They must outlive the replay.
  struct Uses {
    store::Store& store;
    Changes& changes;
    const OperatorRegistry& operators;  // the operators that programs may call
    const program::ProgramLimits& program_limits;
  };
  explicit Replay(Uses uses) : uses_(uses) {}
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Applies the record with this payload (see journal_format.h). Errors: INVALID_ARGUMENT for bytes
  // that EncodeChange never produces, and for a change that does not fit the present contents;
  // NOT_FOUND for a change of something that does not exist; DATA_LOSS if the outcome of the change
  // differs from the recorded one; those of Changes::Apply. After an error the owner is as after
  // the records before, unless the code is DATA_LOSS.
  absl::Status Apply(absl::string_view payload);

 private:
  absl::Status Apply(const v1::CreatedValue& message);
  absl::Status Apply(const v1::CreatedOptimizer& message);
  absl::Status Apply(const v1::DroppedName& message);
  absl::Status Apply(const v1::AssignedValue& message);
  absl::Status Apply(const v1::LoadedValue& message);
  absl::Status Apply(const v1::SteppedOptimizer& message);
  absl::Status Apply(const v1::ChangedOptions& message);
  absl::Status Apply(const v1::ChangedLife& message);

  // Checks that a new value may get this id.
  absl::Status CheckNew(GlobalId id) const;
  absl::StatusOr<std::shared_ptr<optim::OwnerOptimizer>> FindOptimizer(GlobalId id) const;
  absl::StatusOr<LoadValue::State> DecodeState(const v1::LoadedState& message,
                                               const LoadValue& change) const;

  const Uses uses_;
  std::vector<GlobalId> unnamed_;  // hosted values that never had a name, or have none any more
};

}  // namespace psd::change
