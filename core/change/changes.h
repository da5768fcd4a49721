#pragma once

// Applies changes of what a worker hosts under names. No other code can apply them: the functions
// of the store, of parameters and of optimizers that change contents take a store::Changing, which
// only this class can make.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/completion_threads.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/base/parallel_for.h"
#include "core/change/change.h"
#include "core/change/journal.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/owner/optimizer_change.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"
#include "core/rref/rref_context.h"
#include "core/store/store.h"
#include "core/tensor/tensor.h"

namespace psd::change {

// One per worker. Thread-safe.
class Changes final : public optim::ChangeApplier {
 public:
  // The parts of the worker that it uses. They must outlive this object, which must outlive the
  // optimizers.
  struct Uses {
    store::Store& store;
    const optim::OptimizerRegistry& optimizers;
    const program::ProgramLimits& program_limits;
    MemoryBudget& memory;                      // for messages; the store has an account of its own
    Helpers helpers;                           // large steps are divided among them
    Executor* large_steps = nullptr;           // see OwnerOptimizer::Create
    Journal* journal = nullptr;                // null: there is no journal
    CompletionThreads* completions = nullptr;  // see OwnerOptimizer::Create
  };
  // Called with a new optimizer before anybody can find it.
  using Made = std::function<void(const std::shared_ptr<optim::OwnerOptimizer>&)>;

  explicit Changes(Uses uses) : uses_(uses) {}

  // ---- Apply: one function for each kind of change. Afterwards the journal sees the change,
  // unless it has failed. It sees a step that devices still work on after Complete.

  // If the name exists, nothing changes, and the result is the value that has the name; see
  // Store::GetOrCreate. Errors: those of Store::GetOrCreate and of running the program;
  // INVALID_ARGUMENT if the program does not have exactly one result, or if rows cannot be made of
  // it.
  Future<store::EntryPtr> Apply(CreateValue change);
  // As above, for an optimizer. Errors: those of Store::GetOrCreate, Store::Put and
  // OwnerOptimizer::Create.
  Future<store::EntryPtr> Apply(CreateOptimizer change, const Made& made);
  // Errors: NOT_FOUND; FAILED_PRECONDITION if another value has the name.
  absl::Status Apply(const DropName& change) PSD_EXCLUDES(names_mutex_);
  // Requires: the write claim of the value is held.
  // Errors: INVALID_ARGUMENT (no parameter or table, another shape or dtype); RESOURCE_EXHAUSTED;
  // those of the devices.
  absl::Status Apply(AssignValue& change);
  // Requires: the write claim of the value is held; the arrays fit. Errors: as for AssignValue. On
  // the host there are none if the change has no elements.
  absl::Status Apply(const LoadValue& change);
  bool HasJournal() const override { return uses_.journal != nullptr; }
  absl::Status Apply(optim::StepChange& change) override;
  absl::Status Complete(optim::StepChange& change, absl::Status passed) override;
  absl::Status Apply(optim::OptionsChange& change) override;
  absl::Status Apply(optim::LifeChange& change) override;

  // Returns an id for a value that is to be created.
  GlobalId NewId() { return uses_.store.NewId(); }

  // ---- Functions that make a change and apply it.

  // Assigns to the value after the steps that already wait to write it. Then calls `done` with the
  // number of the new version, on this thread or on the thread of the last of those steps. Errors:
  // as Apply.
  void Assign(const store::EntryPtr& entry, Tensor elements,
              absl::AnyInvocable<void(absl::StatusOr<uint64_t>)> done);
  // Removes a name. The value is freed when its last fork and handle are gone; `rrefs` owns the
  // last handle. With `only`, the name is removed only if the value with this id has it. Errors: as
  // Apply.
  absl::Status Drop(rref::RRefContext& rrefs, const std::string& name, GlobalId only = {});

 private:
  void Append(const Change& change) {
    if (uses_.journal != nullptr) uses_.journal->Append(change);
  }

  const Uses uses_;
  // Waits until the journal has seen the end of each name that is free now, so that it sees the end
  // of a name before its next beginning. Other names may end afterwards: the new name can end only
  // once it is visible, which is after the journal has seen its beginning.
  void AwaitEndsOfNames() PSD_EXCLUDES(names_mutex_) { MutexLock lock(names_mutex_); }

  // Held while a name is taken away and the journal sees that.
  Mutex names_mutex_;  // before: Store, Journal
};

}  // namespace psd::change
