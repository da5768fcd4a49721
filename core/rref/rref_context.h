#pragma once

// The RRefs of one worker: its owner ledger, its user ledger, and the messages to the ledgers of
// other workers.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/timer.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/fork_data.h"
#include "core/rref/rref.h"
#include "core/store/store.h"

namespace psd::rref {

class Core;

// Makes the address of the worker with this name known to the agent. Errors: NOT_FOUND.
using PeerFinder = std::function<Future<Unit>(const std::string& worker)>;

// Creates and counts references. See PROTOCOL.md for the protocol. Thread-safe. Must be created
// before the agent starts, because it registers its methods ("rref.release" and others) with it.
class RRefContext {
 public:
  // All arguments must outlive the context; handles may outlive all of them. `clock` and `timers`
  // (of the same clock) pace the sending of many releases. `continuations` runs the callbacks that
  // users attach to the futures of handles; if it is null, they run on the thread that sets the
  // result. References of peers are charged to `memory`; if it is null, they are not charged.
  static std::unique_ptr<RRefContext> Create(rpc::RpcAgent& agent, store::Store& store,
                                             IdSource& ids, const Clock& clock, TimerQueue& timers,
                                             std::shared_ptr<Executor> continuations = nullptr,
                                             std::shared_ptr<MemoryAccount> memory = nullptr);
  // Releases every fork that is held here, as ReleaseAll does.
  ~RRefContext();
  RRefContext(const RRefContext&) = delete;
  RRefContext& operator=(const RRefContext&) = delete;

  // Returns a handle to this worker's own value. An anonymous value that has had a handle or a fork
  // is freed when the last handle here and the last fork elsewhere are gone.
  RRef LocalRRef(store::EntryPtr entry);

  // On the owner: counts a new fork of `entry` for `peer`, to which the reference is about to be
  // sent in this session. Errors: NOT_FOUND if the store no longer has the value.
  absl::StatusOr<ForkData> ForkFor(const store::EntryPtr& entry, const rpc::PeerInfo& peer,
                                   uint64_t session_epoch);
  // On the owner: deletes a fork that `peer` will never learn of and thus cannot release.
  void DropFork(const ForkData& data, const rpc::PeerInfo& peer, uint64_t session_epoch);
  // Makes a handle of a reference that arrived in an answer, in this worker's session on the sender
  // with that epoch. There are three cases. The owner sent it: the owner has counted the fork
  // already, under that session; the handle has failed if the session has been lost since. This
  // worker is the owner: the handle refers to its own value, which may still be under creation.
  // Another worker sent it: the fork is pending until the owner counts it, and then the sender is
  // told, which ends its loan (Lend). Errors: NOT_FOUND for an own value that is gone;
  // INVALID_ARGUMENT for data without ids.
  absl::StatusOr<RRef> AdoptFork(const ForkData& data, uint64_t session_epoch);
  // Makes handles of references that arrived as arguments of a call. Their sender keeps its own
  // forks until the call is answered. As AdoptFork, but forks of other workers' values are always
  // pending, and nobody is told when they are confirmed.
  absl::StatusOr<std::vector<RRef>> Borrow(const ForkRun& run);
  // As Borrow, but handles to own values do not keep the values in the store. For callers that read
  // the values at once and do not pass the references on.
  absl::StatusOr<std::vector<RRef>> BorrowUncounted(const ForkRun& run);
  // Prepares to pass a reference to another worker's value in an answer to `peer`, in this session.
  // This worker's fork is kept until `peer` says that the owner counts its fork, or until the
  // session ends. Errors: those of CheckUsable.
  absl::StatusOr<ForkData> Lend(const RRef& rref, const rpc::PeerInfo& peer,
                                uint64_t session_epoch);
  // Ready when the reference may be passed on in a call: its owner counts it, or has at least begun
  // to create the value and will therefore count the forks of others. Fails if it cannot be passed
  // on.
  Future<Unit> Passable(const RRef& rref);
  // Undoes a Lend that `peer` will never learn of.
  void TakeBack(const ForkData& data, const rpc::PeerInfo& peer, uint64_t session_epoch);
  // Sets the function by which the agent is told the addresses of workers that it does not know.
  // Must be called before the agent starts.
  void FindPeersWith(PeerFinder finder);

  // On the user: returns a handle to a value that `owner` will be asked to create. The ids are
  // chosen here, and the request carries them. The caller must then call Created or CreationFailed
  // once. `owner` may be this worker itself; its fork then ends when the value has been made.
  // `session_epoch` is the epoch of this worker's session on the owner in which the owner answered.
  RRef NewUserRRef(const std::string& owner, Incarnation owner_incarnation);
  void Created(const RRef& rref, Incarnation owner_incarnation, uint64_t session_epoch);
  void CreationFailed(const RRef& rref, absl::Status reason, bool fate_unknown);
  // On the owner: begins the creation of a value that `peer` asked for. Counts the creator's fork;
  // from now on forks of other workers are counted too. Errors: ABORTED if the session has ended or
  // the fork was released before; ALREADY_EXISTS for a value that is being made.
  absl::Status BeginCreation(GlobalId value, GlobalId fork, const rpc::PeerInfo& peer,
                             uint64_t session_epoch);
  // On the owner: ends the creation. The value is in the store, or `made` says why there will be no
  // value. All waiting calls are answered, and the value is freed if nobody holds it any more.
  void EndCreation(GlobalId value, const absl::Status& made);

  // Checks that this RRef can be used. Returns at once, without a message.
  // Errors: INVALID_ARGUMENT if it refers to nothing; the reason why its fork has failed.
  absl::Status CheckUsable(const RRef& rref) const { return CheckUsable({&rref, 1}); }
  // As above, for several RRefs. Errors: that of the first RRef that cannot be used.
  absl::Status CheckUsable(absl::Span<const RRef> rrefs) const;

  struct Stats {
    size_t owners = 0;         // values of this worker with forks elsewhere
    size_t forks = 0;          // the number of those forks
    size_t users = 0;          // forks held here
    size_t pending_users = 0;  // the forks among these that are not confirmed
    size_t loans = 0;          // forks kept for workers that got a reference from here
    size_t releases = 0;       // releases that the owners have not answered yet
  };
  Stats stats() const;
  // Lists at most `limit` forks of other workers' values that still have a handle here, in the form
  // of RRef::ToString.
  std::vector<std::string> Held(size_t limit) const;

  // Releases every fork that is held here, before a shutdown. The owners are told without pauses,
  // as fast as they answer. Handles fail with FAILED_PRECONDITION from now on.
  void ReleaseAll();

 private:
  explicit RRefContext(std::shared_ptr<Core> core);

  const std::shared_ptr<Core> core_;  // shared with handles and the agent's callbacks
};

}  // namespace psd::rref
