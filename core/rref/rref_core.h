#pragma once

// The implementation of RRefContext: both ledgers, the loans, and the messages. Internal to
// core/rref.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/base/timer.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/creations.h"
#include "core/rref/fork_data.h"
#include "core/rref/gate.h"
#include "core/rref/loans.h"
#include "core/rref/outbox.h"
#include "core/rref/owner_ledger.h"
#include "core/rref/rref.h"
#include "core/rref/rref_context.h"
#include "core/rref/user_ledger.h"
#include "core/store/store.h"

namespace psd::rref {

class Core;

// A handle to a value of this worker that does not keep the value alive (Core::Uncounted).
class LocalBody : public RRef::Body {
 public:
  LocalBody(std::shared_ptr<Core> core, store::EntryPtr entry);
  GlobalId value_id() const override { return entry_->id; }
  const std::string& owner() const override;
  const std::string& name() const override { return entry_->name; }
  GlobalId fork_id() const override { return {}; }
  bool is_owner() const override { return true; }
  absl::StatusOr<store::EntryPtr> local_entry() const override { return entry_; }
  Incarnation owner_incarnation() const override;
  Future<Unit> confirmed() const override { return Future<Unit>::Ready(Unit{}); }
  Future<Unit> made() const override { return confirmed(); }
  bool is_made() const override { return true; }
  std::shared_ptr<Executor> continuations() const override;
  const void* context() const override { return core_.get(); }

 protected:
  const std::shared_ptr<Core> core_;  // shared by all bodies; may outlive the context
  const store::EntryPtr entry_;       // shared with the store
};

// A handle to a value of this worker that keeps the value alive.
class CountedLocalBody : public LocalBody {
 public:
  using LocalBody::LocalBody;
  ~CountedLocalBody() override;
};

// A fork of another worker's value.
class UserBody : public RRef::Body {
 public:
  // If `borrowed`, the owner reports separately that it counts the fork and that the value is made;
  // otherwise the value is made when the fork is confirmed.
  UserBody(std::shared_ptr<Core> core, const ForkData& data, bool borrowed)
      : core_(std::move(core)),
        data_(data),
        owner_incarnation_(data.owner_incarnation),
        made_(borrowed ? std::make_unique<const Promise<Unit>>() : nullptr) {}
  ~UserBody() override;
  GlobalId value_id() const override { return data_.value; }
  const std::string& owner() const override { return data_.owner; }
  const std::string& name() const override { return data_.name; }
  GlobalId fork_id() const override { return data_.fork; }
  bool is_owner() const override { return false; }
  absl::StatusOr<store::EntryPtr> local_entry() const override;
  Incarnation owner_incarnation() const override { return owner_incarnation_.load(); }
  Future<Unit> confirmed() const override { return confirmed_.future(); }
  Future<Unit> made() const override { return borrowed() ? made_->future() : confirmed(); }
  bool is_made() const override { return is_made_.load(std::memory_order_acquire); }
  std::shared_ptr<Executor> continuations() const override;
  const void* context() const override { return core_.get(); }
  bool borrowed() const { return made_ != nullptr; }

  void Begun(Incarnation owner_incarnation) const { owner_incarnation_ = owner_incarnation; }
  void Confirm(Incarnation owner_incarnation) const {
    owner_incarnation_ = owner_incarnation;
    if (!borrowed()) is_made_.store(true, std::memory_order_release);
    confirmed_.Set(Unit{});
  }
  void Made(const absl::Status& status) const {
    if (!borrowed()) return;
    if (status.ok()) is_made_.store(true, std::memory_order_release);
    made_->Set(status.ok() ? absl::StatusOr<Unit>(Unit{}) : status);
  }
  void Fail(const absl::Status& reason) const {
    confirmed_.Set(reason);
    Made(reason);
  }

 private:
  const std::shared_ptr<Core> core_;  // shared by all bodies; may outlive the context
  const ForkData data_;
  mutable std::atomic<Incarnation> owner_incarnation_;
  mutable std::atomic<bool> is_made_{false};
  const Promise<Unit> confirmed_;
  const std::unique_ptr<const Promise<Unit>> made_;  // null unless borrowed
};

// A handle to a value that this worker asked itself to create. It has a fork until the value is
// made.
class CreatedBody : public RRef::Body {
 public:
  CreatedBody(std::shared_ptr<Core> core, GlobalId value, GlobalId fork)
      : core_(std::move(core)), value_(value), fork_(fork) {}
  ~CreatedBody() override;
  GlobalId value_id() const override { return value_; }
  const std::string& owner() const override;
  const std::string& name() const override { return name_; }
  GlobalId fork_id() const override { return fork_; }
  bool is_owner() const override { return true; }
  absl::StatusOr<store::EntryPtr> local_entry() const override;
  Incarnation owner_incarnation() const override;
  Future<Unit> confirmed() const override { return confirmed_.future(); }
  Future<Unit> made() const override { return confirmed(); }
  bool is_made() const override { return local_entry().ok(); }
  std::shared_ptr<Executor> continuations() const override;
  const void* context() const override { return core_.get(); }

  // Either Created or Fail must be called, once.
  void Created(store::EntryPtr entry) const {
    entry_ = std::move(entry);
    confirmed_.Set(Unit{});
  }
  void Fail(const absl::Status& reason) const { confirmed_.Set(reason); }

 private:
  const std::shared_ptr<Core> core_;  // shared by all bodies; may outlive the context
  const GlobalId value_;
  const GlobalId fork_;
  const std::string name_;         // always empty
  mutable store::EntryPtr entry_;  // written before confirmed_ is set, read only after
  const Promise<Unit> confirmed_;
};

// A handle to a value of this worker that is being made for another worker. It keeps the value
// alive.
class AwaitedBody : public RRef::Body {
 public:
  AwaitedBody(std::shared_ptr<Core> core, GlobalId value, Future<store::EntryPtr> entry)
      : core_(std::move(core)), value_(value), entry_(std::move(entry)) {}
  ~AwaitedBody() override;
  GlobalId value_id() const override { return value_; }
  const std::string& owner() const override;
  const std::string& name() const override { return name_; }
  GlobalId fork_id() const override { return {}; }
  bool is_owner() const override { return true; }
  absl::StatusOr<store::EntryPtr> local_entry() const override;
  Incarnation owner_incarnation() const override;
  Future<Unit> confirmed() const override { return Future<Unit>::Ready(Unit{}); }
  Future<Unit> made() const override {
    return entry_.Then([](const absl::StatusOr<store::EntryPtr>& entry) { return entry.status(); });
  }
  bool is_made() const override { return entry_.IsReady() && entry_.Wait().ok(); }
  std::shared_ptr<Executor> continuations() const override;
  const void* context() const override { return core_.get(); }

 private:
  const std::shared_ptr<Core> core_;  // shared by all bodies; may outlive the context
  const GlobalId value_;
  const std::string name_;  // always empty
  const Future<store::EntryPtr> entry_;
};

// The ledgers and messages. Shared by the context, its handles and the agent's callbacks.
class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(rpc::RpcAgent& agent, store::Store& store, IdSource& ids, const Clock& clock,
       TimerQueue& timers, std::shared_ptr<Executor> continuations,
       std::shared_ptr<MemoryAccount> memory)
      : continuations_(std::move(continuations)),
        agent_(agent),
        store_(store),
        ids_(ids),
        clock_(clock),
        timers_(timers),
        self_(agent.self()),
        owners_(std::move(memory)) {}

  void Register();
  void Close() { gate_.Close(); }
  const rpc::PeerInfo& self() const { return self_; }
  const std::shared_ptr<Executor>& continuations() const { return continuations_; }
  GlobalId NextId() { return ids_.Next(); }

  // Forks that this worker holds of its own values are filed under a session that never ends.
  SessionKey KeyOf(const rpc::PeerInfo& peer, uint64_t epoch) const {
    return peer.incarnation == self_.incarnation ? SessionKey{self_.incarnation, 0}
                                                 : SessionKey{peer.incarnation, epoch};
  }

  // ---- owner
  RRef Local(store::EntryPtr entry);
  absl::StatusOr<std::vector<RRef>> Uncounted(const ForkRun& run);
  RRef NewOwn();
  void Created(const CreatedBody& body);
  void LocalGone(GlobalId value) { LocalGone(absl::MakeConstSpan(&value, 1)); }
  void LocalGone(absl::Span<const GlobalId> values);
  absl::StatusOr<ForkData> ForkFor(const store::EntryPtr& entry, const rpc::PeerInfo& peer,
                                   uint64_t epoch);
  // Errors: ABORTED if the ledger does not count the fork; RESOURCE_EXHAUSTED.
  absl::Status AddFork(GlobalId value, GlobalId fork, SessionKey session) PSD_EXCLUDES(mutex_);
  absl::Status AddForkLocked(GlobalId value, GlobalId fork, SessionKey session)
      PSD_REQUIRES(mutex_);
  void DropFork(const ForkData& data, SessionKey session);

  // ---- values under creation, in rref_creation.cc
  absl::Status BeginCreation(GlobalId value, GlobalId fork, SessionKey session);
  void EndCreation(GlobalId value, const absl::Status& made);
  Future<Unit> Passable(const RRef& rref);
  void EndWaiting();
  absl::StatusOr<store::EntryPtr> Find(GlobalId value);
  // Fails all futures of entries that are under creation. Requires: the gate is closed.
  void EndAwaiting();

  // ---- user
  RRef User(const ForkData& data, bool borrowed = false);
  void UserGone(GlobalId fork);
  absl::StatusOr<std::vector<RRef>> Home(const ForkRun& run);
  // Returns handles to values that Hold has counted. `making` is the result of Hold; `made` has the
  // entries of the values that are not under creation, in order.
  std::vector<RRef> Handles(absl::Span<const GlobalId> values,
                            absl::Span<const Future<store::EntryPtr>> making,
                            std::vector<store::EntryPtr> made);
  // To be called when the owner counts the fork under this worker's session there. Returns false if
  // the fork cannot be used: that session has been lost, or everything was released.
  bool Confirm(const UserBody& body, SessionKey session);
  void Fail(GlobalId fork, absl::Status reason, bool may_exist);
  absl::Status Check(absl::Span<const RRef> rrefs) const;
  void ReleaseAll();
  std::vector<std::string> Held(size_t limit) const;
  RRefContext::Stats stats() const;

  // ---- references that travel between workers, in rref_lending.cc
  absl::StatusOr<ForkData> Lend(const RRef& rref, const rpc::PeerInfo& peer, uint64_t epoch);
  void TakeBack(GlobalId child, SessionKey session);
  absl::StatusOr<RRef> Borrow(const ForkData& data);
  void SayCounted(const ForkData& data, const RRef& rref);
  void FindPeersWith(PeerFinder finder) { find_peer_ = std::move(finder); }

 private:
  using Releases = std::vector<ForkRelease>;

  void OnRelease(const std::shared_ptr<rpc::ServerCall>& call);
  void OnFork(const std::shared_ptr<rpc::ServerCall>& call);
  void OnCounted(const std::shared_ptr<rpc::ServerCall>& call);
  void OnBegun(const std::shared_ptr<rpc::ServerCall>& call);
  void OnMade(const std::shared_ptr<rpc::ServerCall>& call);
  void GiveUpWhenCancelled(const std::shared_ptr<rpc::ServerCall>& call, GlobalId value);
  // `epoch` is the epoch of this worker's session on the owner in which the fork was counted.
  void AskWhenMade(const RRef& fork, uint64_t epoch);
  void AskToCount(const RRef& fork, bool may_search);
  void Counted(const RRef& fork, const absl::StatusOr<rpc::Reply>& reply);
  void OnSessionEnded(const rpc::PeerInfo& peer, uint64_t epoch);
  void FreeIfUnheld(absl::Span<const GlobalId> values) PSD_EXCLUDES(mutex_);
  // Counts a handle to each of `values`. Returns one future for each: that of its entry if the
  // value is under creation, otherwise an invalid one.
  std::vector<Future<store::EntryPtr>> Hold(absl::Span<const GlobalId> values) PSD_EXCLUDES(mutex_);

  // ---- in rref_releasing.cc
  void Queue(const Releases& releases) PSD_EXCLUDES(mutex_);
  void SendNext(const std::string& owner) PSD_EXCLUDES(mutex_);
  void Released(const std::string& owner, bool told) PSD_EXCLUDES(mutex_);

  const std::shared_ptr<Executor> continuations_;  // shared with futures that users hold
  // This and the next four are used only inside the gate.
  rpc::RpcAgent& agent_;
  store::Store& store_;
  IdSource& ids_;
  const Clock& clock_;
  TimerQueue& timers_;
  const rpc::PeerInfo self_;
  PeerFinder find_peer_;  // does not change after the agent starts; may be null
  Gate gate_;
  mutable Mutex mutex_;  // before: Store, Clock
  OwnerLedger owners_ PSD_GUARDED_BY(mutex_);
  UserLedger users_ PSD_GUARDED_BY(mutex_);
  // Number of handles of each own value.
  absl::flat_hash_map<GlobalId, size_t> handles_ PSD_GUARDED_BY(mutex_);
  // By owner. An owner has an outbox only while it has not answered all releases.
  absl::flat_hash_map<std::string, Outbox> outboxes_ PSD_GUARDED_BY(mutex_);
  bool in_a_hurry_ PSD_GUARDED_BY(mutex_) = false;  // releases are sent without pauses
  Loans loans_ PSD_GUARDED_BY(mutex_);
  Creations creations_ PSD_GUARDED_BY(mutex_);
  // The entries of values that are under creation and have handles.
  absl::flat_hash_map<GlobalId, Promise<store::EntryPtr>> awaited_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::rref
