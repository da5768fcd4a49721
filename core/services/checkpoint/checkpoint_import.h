#pragma once

// Values that are loaded into an owner. Each of them replaces another value and its state, or is
// new.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/change/change.h"
#include "core/change/changes.h"
#include "core/rref/rref_context.h"
#include "core/services/checkpoint/checkpoint_rows.h"
#include "core/store/store.h"
#include "core/store/value.h"
#include "core/tensor/tensor.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::services {

// A value that replaces another, and its state.
struct Incoming {
  store::EntryPtr entry;  // the value that it replaces; null if it is new
  Rows rows;
  std::string name;
  Tensor elements;
  using State = change::LoadValue::State;
  std::vector<State> states;
  // The life that the load has given to the optimizers of the states; no id: not compared.
  GlobalId load;
};

struct Inbound {
  std::vector<Incoming> items;
  struct Restored {
    std::shared_ptr<optim::OwnerOptimizer> optimizer;
    uint64_t steps_accepted = 0;
    double loss_scale = 0;
    uint64_t good_steps = 0;
    bool kept = false;  // only its life is set, everything else stays as it is
    optim::OptimizerLife life;
    GlobalId judged;
  };
  std::vector<Restored> optimizers;
};

// Returns the changes that `message` and its tensors, `values`, ask for. Changes nothing yet.
// `here` is this owner's name. Errors: NOT_FOUND, INVALID_ARGUMENT; FAILED_PRECONDITION for items
// that do not fit.
absl::StatusOr<std::shared_ptr<Inbound>> DecodeImport(store::Store& store,
                                                      const optim::LifeOwner& here,
                                                      const v1::ImportRequest& message,
                                                      const store::Values& values);

// Returns whether `item` replaces an existing parameter or table, which requires its write claim.
bool Changes(const Incoming& item);

// Replaces the value and its state. Requires: Changes(item); the value's write claim is held.
// Errors: FAILED_PRECONDITION if another load of an optimizer that steps the value has begun.
absl::Status Replace(change::Changes& changes, const Incoming& item);

// Makes a value that is not a parameter, in place of the one that was found under its name.
// Requires: !Changes(item). Errors: ABORTED or FAILED_PRECONDITION if the name has been given to
// another value since then; RESOURCE_EXHAUSTED.
absl::Status MakeValue(change::Changes& changes, rref::RRefContext& rrefs, const Incoming& item);

// Adds the ids whose claims Restore needs.
void AddClaimsOf(const Inbound::Restored& restored, std::vector<GlobalId>& ids);
// Sets the counters and the life of an optimizer. Requires: the claims of AddClaimsOf are held, and
// all the state of the optimizer's parameters has been replaced. Errors: FAILED_PRECONDITION if the
// optimizer was dropped, another load of it has begun, or a part that is kept has changed since it
// was judged; RESOURCE_EXHAUSTED.
absl::Status Restore(const Inbound::Restored& restored);

}  // namespace psd::services
