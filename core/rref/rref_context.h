#pragma once

// The RRefs of one worker: both ledgers, and the messages between them.

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
#include "core/base/timer.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/fork_data.h"
#include "core/rref/rref.h"
#include "core/store/store.h"

namespace psd::rref {

// Makes the agent know the worker of that name. Errors: NOT_FOUND.
using PeerFinder = std::function<Future<Unit>(const std::string& worker)>;

// Thread-safe. Registers its methods ("rref.release", …) with the agent before the agent starts.
class RRefContext {
 public:
  // What it is given outlives the context; handles may outlive all of them. `clock` and `timers`
  // (of that clock) say how fast many releases go. `continuations` runs what users hang on the
  // futures of handles; null: they run on the thread that sets the result.
  static std::unique_ptr<RRefContext> Create(rpc::RpcAgent& agent, store::Store& store,
                                             IdSource& ids, const Clock& clock, TimerQueue& timers,
                                             std::shared_ptr<Executor> continuations = nullptr);
  virtual ~RRefContext() = default;

  // A handle on this worker's own value. Anonymous values that ever had a handle or a fork are
  // freed when the last handle here and the last fork elsewhere are gone.
  virtual RRef LocalRRef(store::EntryPtr entry) = 0;

  // Owner: `peer`, in this session, is about to be told of `entry`: counts a new fork for it.
  // Errors: NOT_FOUND if the store has the value no longer.
  virtual absl::StatusOr<ForkData> ForkFor(const store::EntryPtr& entry, const rpc::PeerInfo& peer,
                                           uint64_t session_epoch) = 0;
  // Owner: `peer` never hears of that fork, so nobody will release it.
  virtual void DropFork(const ForkData& data, const rpc::PeerInfo& peer,
                        uint64_t session_epoch) = 0;
  // A reference that arrived. User: a fork that the owner has counted already (the reply to a
  // lookup or a creation). Owner: its own value comes home, perhaps while it is being made.
  // In an answer of a worker that is not the owner: pending until the owner counts it; then that
  // worker is told (Lend).
  // Errors: NOT_FOUND for an own value that is gone; INVALID_ARGUMENT for data without ids.
  virtual absl::StatusOr<RRef> AdoptFork(const ForkData& data) = 0;
  // References among the arguments of a call, whose sender keeps its own until the answer. As
  // AdoptFork, but forks are pending, and nobody is told when they are confirmed.
  virtual absl::StatusOr<std::vector<RRef>> Borrow(const ForkRun& run) = 0;
  // As Borrow, for who reads own values at once and passes the references to nobody: they keep no
  // value in the store.
  virtual absl::StatusOr<std::vector<RRef>> BorrowUncounted(const ForkRun& run) = 0;
  // Passes a reference to another worker's value in an answer to `peer`, in this session: it is
  // kept here until `peer` says that the owner counts its fork, or its session ends.
  // Errors: what CheckUsable says.
  virtual absl::StatusOr<ForkData> Lend(const RRef& rref, const rpc::PeerInfo& peer,
                                        uint64_t session_epoch) = 0;
  // Whoever holds a reference may pass it on, in a call, when this is ready: its owner counts it,
  // or will as soon as it counts others. For the creator's own that is when the creation has begun.
  // Fails with why it may not.
  virtual Future<Unit> Passable(const RRef& rref) = 0;
  // `peer` never hears of it.
  virtual void TakeBack(const ForkData& data, const rpc::PeerInfo& peer,
                        uint64_t session_epoch) = 0;
  // How a worker that the agent does not know becomes reachable. Before the agent starts.
  virtual void FindPeersWith(PeerFinder finder) = 0;

  // User: a value that `owner` is being asked to make, under ids chosen here. The request carries
  // them; Created or CreationFailed follows once. This worker may ask itself: then the handle is an
  // owner's, and its fork goes when the value is there.
  virtual RRef NewUserRRef(const std::string& owner, Incarnation owner_incarnation) = 0;
  virtual void Created(const RRef& rref, Incarnation owner_incarnation) = 0;
  virtual void CreationFailed(const RRef& rref, absl::Status reason, bool fate_unknown) = 0;
  // Owner: begins to make a value that `peer` asked for. Counts the creator's fork; from now on
  // others are counted too. Errors: ABORTED if the session has ended or the fork was released
  // before; ALREADY_EXISTS for a value that is being made.
  virtual absl::Status BeginCreation(GlobalId value, GlobalId fork, const rpc::PeerInfo& peer,
                                     uint64_t session_epoch) = 0;
  // Owner: the value is in the store, or `made` says why there will be none. Whoever waits is told;
  // what nobody holds any more is freed.
  virtual void EndCreation(GlobalId value, const absl::Status& made) = 0;

  // Why this RRef cannot be used, or OK. Prompt: no message.
  absl::Status CheckUsable(const RRef& rref) const { return CheckUsable({&rref, 1}); }
  // Of several, what is wrong with the first that cannot be.
  virtual absl::Status CheckUsable(absl::Span<const RRef> rrefs) const = 0;

  struct Stats {
    size_t owners = 0;         // values of this worker with forks elsewhere
    size_t forks = 0;          // those forks
    size_t users = 0;          // forks held here
    size_t pending_users = 0;  // of these, not confirmed
    size_t loans = 0;          // kept for workers that got a reference from here
    size_t releases = 0;       // of forks held here once, that their owners have not answered yet
  };
  virtual Stats stats() const = 0;
  // At most `limit` of the forks here that still have a handle, as RRef::ToString.
  virtual std::vector<std::string> Held(size_t limit) const = 0;

  // Releases every fork held here, as far as the owners can be told at once, and as fast as they
  // answer; handles answer FAILED_PRECONDITION from now on.
  virtual void ReleaseAll() = 0;
};

}  // namespace psd::rref
