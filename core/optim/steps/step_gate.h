#pragma once

// Where steps wait for those of other trainers: the edge around RoundLedger and PaceLedger.

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/ids.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/steps/step_request.h"

namespace psd::optim {

// Sessions whose end a gate remembers, for steps of theirs that still come.
inline constexpr size_t kRememberedSessions = 4096;

// Thread-safe. Calls nobody back with a lock held.
class StepGate {
 public:
  // Runs steps as one; may return before they are done.
  using Run = std::function<void(std::vector<StepRequest>)>;

  // Null for modes in which no step waits: asynchronous, and refusing what is stale.
  static std::unique_ptr<StepGate> Create(const UpdateMode& mode, Run run);
  virtual ~StepGate() = default;

  // Runs the step when its mode allows: now, or on a thread of one of the calls below. Every step
  // ends with its `done`, from `run` or from here.
  // Errors (through `done`): FAILED_PRECONDITION (no place in the round, the trainer's last step
  // still waits, other terms than those of the round); ABORTED (the session has ended, the step
  // was asked for again, its trainer has left); CANCELLED (withdrawn).
  virtual void Submit(StepRequest request) = 0;
  // The caller has given up: unless the step runs already, it is not applied.
  virtual void Withdraw(GlobalId step) = 0;
  // Nobody waits for the session any more. `ended`: it never comes back.
  virtual void Leave(GlobalId session, bool ended) = 0;

  struct Stats {
    size_t members = 0;
    size_t waiting = 0;
  };
  virtual Stats stats() const = 0;
};

}  // namespace psd::optim
