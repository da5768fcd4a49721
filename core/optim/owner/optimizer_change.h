#pragma once

// The changes of an optimizer and of the parameters that it steps, as plain records, and the
// interface through which an optimizer has them applied. All other kinds of changes are in
// core/change/change.h.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/base/completion_threads.h"
#include "core/base/ids.h"
#include "core/optim/options/option_groups.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/optim/parameters/parameter_table.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/optim/steps/step_request.h"
#include "core/store/parameter.h"

namespace psd::optim {

class OwnerOptimizer;

// One step, or the steps of a synchronous round that are applied as one. All inputs are resolved:
// applying it asks for no schedule, no other trainer and no context. It refers to data of the step,
// and is valid until the step ends.
struct StepChange {
  // A trainer's step that this change ends.
  struct Ended {
    GlobalId session;           // {incarnation, epoch}
    GlobalId step;              // its id
    uint64_t ended_before = 0;  // see StepRequest
    uint32_t seats = 1;         // see StepRequest
  };

  OwnerOptimizer* optimizer = nullptr;
  // The summed gradients, in the order in which they are applied, with their parameters in the
  // optimizer's table. Null if terms.overflow; the step is then skipped.
  const StepPlan* plan = nullptr;
  // The seeds for stochastic rounding, one for each gradient of the plan.
  absl::Span<const size_t> rounding_seeds;
  // gradient_scale includes the reduction of the round and clipping. schedule_step is not used,
  // because `functions` already have the learning rate of the schedule.
  StepTerms terms;
  GroupFunctions functions;  // the function of each group; empty if terms.overflow
  bool scheduled = false;    // whether `functions` have other options than the groups
  absl::InlinedVector<Ended, 1> steps;
  // Set when the change is complete: the answer to each trainer, which the trainer's session
  // remembers.
  StepResult result;

  // The state of a step between Apply and Complete.
  struct UnderWay {
    // Behind the work on the device. If there is no event, the change is complete.
    DeviceEvent written;
    std::vector<store::Parameter::Write> writes;  // of the parameters that have versions
    std::vector<uint64_t> table_versions;         // of the other parameters, before the step
    StepMemory memory;
  };
  UnderWay under_way;
};

// All options of a group, and their version.
struct OptionsChange {
  OwnerOptimizer* optimizer = nullptr;
  size_t group = 0;
  std::map<std::string, double> options;
  uint64_t version = 0;  // above 0
};

// The counters of an optimizer that was saved.
struct LoadedCounters {
  uint64_t steps = 0;       // accepted steps
  double loss_scale = 0;    // unused, like the next field, if losses are not scaled
  uint64_t good_steps = 0;  // good steps in a row with this loss scale
};

// The optimizer gets another life, or another stage of its life.
struct LifeChange {
  OwnerOptimizer* optimizer = nullptr;
  OptimizerLife life;
  // Set at the end of a load that has replaced the optimizer's state.
  std::optional<LoadedCounters> loaded;
};

// Applies the changes that an optimizer has decided on, and passes them to the owner's journal. A
// worker's implementation is change::Changes. Thread-safe.
class ChangeApplier {
 public:
  virtual ~ChangeApplier() = default;
  // Whether there is a journal. Then the gradients of steps of described optimizers are on the
  // host.
  virtual bool HasJournal() const = 0;
  // Publishes the new versions of the plan's parameters. If all of them are on one device, it may
  // still be at work: then change.under_way has an event, and when it has passed, Complete must be
  // called. The next change of these parameters may be applied before that if it also is work of
  // this device's default stream. Requires: the write claims of the optimizer and of the plan's
  // parameters are held until the change is complete, and not handed on before this has returned;
  // every step may be applied, and its session has confirmed this. Errors:
  // those of the parameters' devices, after which dense parameters keep their versions, tables may
  // have changed and count a version more, and no trainer's step has ended. On the host there are
  // no errors.
  virtual absl::Status Apply(StepChange& change) = 0;
  // Completes the change after its event has passed, with the result `passed`. Returns `passed`:
  // after an error the device is lost, and no trainer's step has ended. Does not wait. Requires:
  // the changes of an optimizer and of a parameter are completed in the order in which they were
  // applied.
  virtual absl::Status Complete(StepChange& change, absl::Status passed) = 0;
  // Requires, for this function and the next: no other such change of the optimizer is under way.
  // Errors: those of OptionGroups::Change.
  virtual absl::Status Apply(OptionsChange& change) = 0;
  // Errors: those of OwnerOptimizer::SetLife, and of the devices at the end of a load.
  virtual absl::Status Apply(LifeChange& change) = 0;
};

}  // namespace psd::optim
