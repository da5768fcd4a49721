#pragma once

// The contexts that a worker knows, each with the session that keeps it alive and its running pass.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/base/recent_set.h"
#include "core/base/stepwise_charge.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/pass.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/owner_ledger.h"

namespace psd::dist_autograd {

// Thread-safe. Runs no callback under its lock except the short `make` of a pass.
class ContextTable {
 public:
  static constexpr size_t kMaxContexts = size_t{1} << 20;
  // The number of released contexts that are remembered, so that a request which arrives after the
  // release cannot bring one back.
  static constexpr size_t kMaxReleased = 16'384;
  // The number of ended sessions that are remembered, because functions of theirs may still run.
  static constexpr size_t kMaxEndedSessions = 65'536;
  // The number of workers for which a context remembers the last pass that they started and that
  // has ended.
  static constexpr size_t kMaxInitiators = 4096;
  // The number of contexts of a session that are covered by the charge of the session itself.
  static constexpr size_t kOwnContexts = 4;

  // Contexts that peers bring are charged to `memory`; if it is null, they are not charged.
  ContextTable(rpc::PeerInfo self, IdSource& ids, std::shared_ptr<MemoryBudget> memory = nullptr)
      : self_(std::move(self)), ids_(ids), memory_(std::move(memory)) {}

  // The session that brought a context here; no session if it was created here.
  using Origin = rref::SessionKey;

  std::shared_ptr<ContextState> Create() PSD_EXCLUDES(mutex_);
  // Errors: NOT_FOUND.
  absl::StatusOr<std::shared_ptr<ContextState>> Find(GlobalId context) const PSD_EXCLUDES(mutex_);
  // Returns the context, and adds it under the session `origin` if it is unknown.
  // Errors: NOT_FOUND for a context that was released, or whose id is of this worker and unknown;
  // ABORTED if the session has ended; RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<ContextState>> FindOrJoin(GlobalId context, Origin origin)
      PSD_EXCLUDES(mutex_);

  // An erased context, and the pass that ran in it, if any.
  struct Erased {
    std::shared_ptr<ContextState> state;
    std::shared_ptr<Pass> pass;
  };
  // Erases a context, which cannot be joined again. The result has no state if it was unknown.
  Erased Erase(GlobalId context) PSD_EXCLUDES(mutex_);
  // Erases the contexts that the session brought here. Also erases contexts that the session's
  // worker created and that others brought, unless that worker already has another session here
  // (`has_later`), for which they may live.
  std::vector<Erased> EraseOf(Origin session, absl::FunctionRef<bool()> has_later)
      PSD_EXCLUDES(mutex_);

  // Returns the running pass `id` of `context`. If there is none, `make` makes it, without a lock
  // held; if two threads make it, one of the two is dropped. An older pass of the same initiator is
  // moved to `*superseded`, and the caller must fail it. Errors: NOT_FOUND (context), ABORTED (the
  // pass has ended here), FAILED_PRECONDITION (a pass of another worker is running).
  absl::StatusOr<std::shared_ptr<Pass>> JoinPass(GlobalId context, GlobalId id,
                                                 absl::FunctionRef<std::shared_ptr<Pass>()> make,
                                                 std::shared_ptr<Pass>* superseded)
      PSD_EXCLUDES(mutex_);
  // Starts a pass of this worker. `make` makes it from an id that is greater than the ids of all
  // passes that this worker has started in the context. Errors: NOT_FOUND, FAILED_PRECONDITION (a
  // pass is running).
  absl::StatusOr<std::shared_ptr<Pass>> StartPass(
      const std::shared_ptr<ContextState>& context,
      absl::FunctionRef<std::shared_ptr<Pass>(GlobalId id)> make) PSD_EXCLUDES(mutex_);
  // Removes a pass that is over. Its later messages are refused. Returns null if it never ran here.
  std::shared_ptr<Pass> EndPass(GlobalId context, GlobalId id) PSD_EXCLUDES(mutex_);

  size_t NumContexts() const PSD_EXCLUDES(mutex_);
  size_t NumPasses() const PSD_EXCLUDES(mutex_);
  std::vector<std::shared_ptr<ContextState>> All() const PSD_EXCLUDES(mutex_);
  std::vector<std::shared_ptr<Pass>> Passes() const PSD_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::shared_ptr<ContextState> state;  // shared, see ContextState
    Origin origin;
    std::shared_ptr<Pass> pass;  // shared with what it waits for
    // For each initiator, the last of its passes that ended. An initiator runs one pass at a time,
    // with growing ids.
    absl::flat_hash_map<Incarnation, uint64_t> ended;
  };
  // As JoinPass with `made` as the new pass. If `made` is null and a new pass is needed, returns
  // null and changes nothing.
  absl::StatusOr<std::shared_ptr<Pass>> TryJoinPass(GlobalId context, GlobalId id,
                                                    std::shared_ptr<Pass> made,
                                                    std::shared_ptr<Pass>* superseded)
      PSD_EXCLUDES(mutex_);
  // The contexts that one session brought beyond those that the charge of the session covers.
  struct Held {
    StepwiseCharge charge{size_t{16} << 10, kOwnContexts* ContextState::kContextBytes};
  };
  absl::Status Charge(Origin origin) PSD_REQUIRES(mutex_);
  void Credit(const Origin& origin) PSD_REQUIRES(mutex_);
  absl::Status NotFound(GlobalId context) const;
  void EraseEntry(absl::flat_hash_map<GlobalId, Entry>::iterator entry, std::vector<Erased>& erased)
      PSD_REQUIRES(mutex_);
  void Remember(GlobalId released) PSD_REQUIRES(mutex_);

  const rpc::PeerInfo self_;
  IdSource& ids_;
  const std::shared_ptr<MemoryBudget> memory_;                     // shared with the worker
  mutable Mutex mutex_;                                            // leaf
  absl::flat_hash_map<Origin, Held> held_ PSD_GUARDED_BY(mutex_);  // no session without contexts
  absl::flat_hash_map<GlobalId, Entry> entries_ PSD_GUARDED_BY(mutex_);
  RecentSet<GlobalId> released_ PSD_GUARDED_BY(mutex_){kMaxReleased};
  RecentSet<Origin> ended_ PSD_GUARDED_BY(mutex_){kMaxEndedSessions};
};

}  // namespace psd::dist_autograd
