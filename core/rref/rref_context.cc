#include "core/rref/rref_context.h"

#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/rref/gate.h"
#include "core/rref/owner_ledger.h"
#include "core/rref/user_ledger.h"
#include "proto/psd/v1/rref.pb.h"

namespace psd::rref {
namespace {

constexpr absl::Duration kReleaseTimeout = absl::Seconds(60);
constexpr size_t kMaxReleasesPerMessage = 65'536;

class Core;

// A handle on a value of this worker.
class LocalBody : public RRef::Body {
 public:
  LocalBody(std::shared_ptr<Core> core, store::EntryPtr entry);
  ~LocalBody() override;
  GlobalId value_id() const override { return entry_->id; }
  const std::string& owner() const override;
  const std::string& name() const override { return entry_->name; }
  GlobalId fork_id() const override { return {}; }
  store::EntryPtr local_entry() const override { return entry_; }
  Incarnation owner_incarnation() const override;
  Future<Unit> confirmed() const override { return Future<Unit>::Ready(Unit{}); }

 private:
  const std::shared_ptr<Core> core_;  // shared by all bodies; may outlive the context
  const store::EntryPtr entry_;       // shared with the store
};

// A fork of another worker's value.
class UserBody : public RRef::Body {
 public:
  UserBody(std::shared_ptr<Core> core, const ForkData& data)
      : core_(std::move(core)), data_(data), owner_incarnation_(data.owner_incarnation) {}
  ~UserBody() override;
  GlobalId value_id() const override { return data_.value; }
  const std::string& owner() const override { return data_.owner; }
  const std::string& name() const override { return data_.name; }
  GlobalId fork_id() const override { return data_.fork; }
  store::EntryPtr local_entry() const override { return nullptr; }
  Incarnation owner_incarnation() const override { return owner_incarnation_.load(); }
  Future<Unit> confirmed() const override { return confirmed_.future(); }

  void Confirm(Incarnation owner_incarnation) const {
    owner_incarnation_ = owner_incarnation;
    confirmed_.Set(Unit{});
  }
  void Fail(const absl::Status& reason) const { confirmed_.Set(reason); }

 private:
  const std::shared_ptr<Core> core_;  // shared by all bodies; may outlive the context
  const ForkData data_;
  mutable std::atomic<Incarnation> owner_incarnation_;
  const Promise<Unit> confirmed_;
};

// Ledgers and messages: shared by the context, its handles and the agent's callbacks.
class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(rpc::RpcAgent& agent, store::Store& store, IdSource& ids)
      : agent_(agent), store_(store), ids_(ids), self_(agent.self()) {}

  void Register();
  void Close() { gate_.Close(); }
  const rpc::PeerInfo& self() const { return self_; }
  GlobalId NextId() { return ids_.Next(); }

  // What this worker holds of itself lives under a session that never ends.
  SessionKey KeyOf(const rpc::PeerInfo& peer, uint64_t epoch) const {
    return peer.incarnation == self_.incarnation ? SessionKey{self_.incarnation, 0}
                                                 : SessionKey{peer.incarnation, epoch};
  }

  // ---- owner
  RRef Local(store::EntryPtr entry);
  void LocalGone(const store::EntryPtr& entry);
  ForkData ForkFor(const store::EntryPtr& entry, const rpc::PeerInfo& peer, uint64_t epoch);
  bool AddFork(GlobalId value, GlobalId fork, SessionKey session);
  void DropFork(const ForkData& data, SessionKey session);

  // ---- user
  RRef User(const ForkData& data, ForkState state);
  void UserGone(GlobalId fork);
  absl::StatusOr<RRef> Home(const ForkData& data);
  void Confirm(GlobalId fork, Incarnation owner);
  void Fail(GlobalId fork, absl::Status reason, bool may_exist);
  absl::Status Check(absl::Span<const RRef> rrefs) const;
  void ReleaseAll();
  RRefContext::Stats stats() const;

 private:
  using Releases = std::vector<ForkRelease>;
  struct Outbox {
    Releases waiting;
    bool in_flight = false;
  };

  void OnRelease(const std::shared_ptr<rpc::ServerCall>& call);
  void OnSessionEnded(const rpc::PeerInfo& peer, uint64_t epoch);
  void FreeIfUnheld(const std::vector<GlobalId>& values);
  void Queue(Releases releases);
  void SendNext(const std::string& owner);

  rpc::RpcAgent& agent_;  // these three only inside the gate
  store::Store& store_;
  IdSource& ids_;
  const rpc::PeerInfo self_;
  Gate gate_;
  mutable Mutex mutex_;  // leaf
  OwnerLedger owners_ PSD_GUARDED_BY(mutex_);
  UserLedger users_ PSD_GUARDED_BY(mutex_);
  absl::flat_hash_map<GlobalId, size_t> handles_ PSD_GUARDED_BY(mutex_);  // on own values
  absl::flat_hash_map<std::string, Outbox> outboxes_ PSD_GUARDED_BY(mutex_);
};

LocalBody::LocalBody(std::shared_ptr<Core> core, store::EntryPtr entry)
    : core_(std::move(core)), entry_(std::move(entry)) {}
LocalBody::~LocalBody() {
  core_->LocalGone(entry_);
}
const std::string& LocalBody::owner() const {
  return core_->self().name;
}
Incarnation LocalBody::owner_incarnation() const {
  return core_->self().incarnation;
}
UserBody::~UserBody() {
  core_->UserGone(data_.fork);
}

void Core::Register() {
  agent_.RegisterMethod({"rref.release", rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread,
                         [core = shared_from_this()](std::shared_ptr<rpc::ServerCall> call) {
                           core->OnRelease(call);
                         }});
  agent_.OnSessionEnded([core = shared_from_this()](const rpc::PeerInfo& peer, uint64_t epoch) {
    core->OnSessionEnded(peer, epoch);
  });
  agent_.OnSessionLost(
      [core = shared_from_this()](const rpc::PeerInfo& peer, const absl::Status& reason) {
        MutexLock lock(core->mutex_);
        core->users_.SessionLost(peer.name, peer.incarnation, reason);
      });
}

// ---- owner

RRef Core::Local(store::EntryPtr entry) {
  {
    MutexLock lock(mutex_);
    ++handles_[entry->id];
  }
  return RRef(std::make_shared<const LocalBody>(shared_from_this(), std::move(entry)));
}

void Core::LocalGone(const store::EntryPtr& entry) {
  {
    MutexLock lock(mutex_);
    auto it = handles_.find(entry->id);
    if (--it->second > 0) return;
    handles_.erase(it);
  }
  FreeIfUnheld({entry->id});
}

// Named values have their name as a root: the store erases anonymous ones only.
void Core::FreeIfUnheld(const std::vector<GlobalId>& values) {
  Gate::Entry entry(gate_);
  if (!entry.open()) return;
  for (GlobalId value : values) {
    {
      MutexLock lock(mutex_);
      if (handles_.contains(value) || owners_.ForkCount(value) > 0) continue;
    }
    store_.Erase(value);
  }
}

ForkData Core::ForkFor(const store::EntryPtr& entry, const rpc::PeerInfo& peer, uint64_t epoch) {
  ForkData data;
  data.owner = self_.name;
  data.owner_incarnation = self_.incarnation;
  data.value = entry->id;
  data.fork = ids_.Next();
  data.parent = self_.name;
  data.name = entry->name;
  AddFork(data.value, data.fork, KeyOf(peer, epoch));
  return data;
}

bool Core::AddFork(GlobalId value, GlobalId fork, SessionKey session) {
  MutexLock lock(mutex_);
  return owners_.AddFork(value, fork, session);
}

void Core::DropFork(const ForkData& data, SessionKey session) {
  {
    MutexLock lock(mutex_);
    if (!owners_.DeleteFork(data.value, data.fork, session)) return;
  }
  FreeIfUnheld({data.value});
}

void Core::OnRelease(const std::shared_ptr<rpc::ServerCall>& call) {
  v1::ReleaseForks in;
  const bool parsed = in.ParseFromString(call->payload().header);
  const int count = in.fork_counters_size();
  if (!parsed || in.value_counters_size() != count || in.value_incarnations_size() != count ||
      in.fork_incarnations_size() != count) {
    return call->Reply(absl::InvalidArgumentError("rref.release: its columns disagree"));
  }
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("release cancelled"));
  const SessionKey session = KeyOf(call->caller(), call->session_epoch());
  std::vector<GlobalId> freed;
  {
    MutexLock lock(mutex_);
    for (int i = 0; i < count; ++i) {
      GlobalId value{in.value_incarnations(i), in.value_counters(i)};
      GlobalId fork{in.fork_incarnations(i), in.fork_counters(i)};
      if (owners_.DeleteFork(value, fork, session)) freed.push_back(value);
    }
  }
  FreeIfUnheld(freed);
  call->Reply(rpc::Payload{});
}

void Core::OnSessionEnded(const rpc::PeerInfo& peer, uint64_t epoch) {
  if (peer.incarnation == self_.incarnation) return;
  std::vector<GlobalId> freed;
  {
    MutexLock lock(mutex_);
    freed = owners_.EndSession({peer.incarnation, epoch});
  }
  FreeIfUnheld(freed);
}

// ---- user

RRef Core::User(const ForkData& data, ForkState state) {
  {
    MutexLock lock(mutex_);
    users_.Add(data.owner, data.owner_incarnation, data.value, data.fork, state);
  }
  auto body = std::make_shared<const UserBody>(shared_from_this(), data);
  if (state == ForkState::kConfirmed) body->Confirm(data.owner_incarnation);
  return RRef(std::move(body));
}

// The fork that kept the value on its way ends when there is a handle here.
absl::StatusOr<RRef> Core::Home(const ForkData& data) {
  PSD_ASSIGN_OR_RETURN(store::EntryPtr entry, store_.Get(data.value));
  RRef local = Local(std::move(entry));
  if (data.parent != self_.name) return local;
  MutexLock lock(mutex_);
  owners_.DeleteFork(data.value, data.fork, {self_.incarnation, 0});
  return local;
}

void Core::UserGone(GlobalId fork) {
  std::optional<ForkRelease> release;
  {
    MutexLock lock(mutex_);
    release = users_.Drop(fork);
  }
  if (release.has_value()) Queue({*std::move(release)});
}

void Core::Confirm(GlobalId fork, Incarnation owner) {
  std::optional<ForkRelease> release;
  {
    MutexLock lock(mutex_);
    release = users_.Confirm(fork, owner);
  }
  if (release.has_value()) Queue({*std::move(release)});
}

void Core::Fail(GlobalId fork, absl::Status reason, bool may_exist) {
  std::optional<ForkRelease> release;
  {
    MutexLock lock(mutex_);
    release = users_.Fail(fork, std::move(reason), may_exist);
  }
  if (release.has_value()) Queue({*std::move(release)});
}

absl::Status Core::Check(absl::Span<const RRef> rrefs) const {
  for (const RRef& rref : rrefs) {
    if (!rref.valid()) return absl::InvalidArgumentError("an RRef that refers to nothing");
  }
  absl::Status status;
  size_t at = 0;
  {
    MutexLock lock(mutex_);
    for (; at < rrefs.size(); ++at) {
      if (rrefs[at].is_owner()) continue;
      status = users_.Check(rrefs[at].body()->fork_id());
      if (!status.ok()) break;
    }
  }
  return status.ok() ? status : Annotate(status, rrefs[at].ToString());
}

void Core::ReleaseAll() {
  Releases releases;
  {
    MutexLock lock(mutex_);
    releases = users_.ReleaseAll(absl::FailedPreconditionError(
        absl::StrCat("all RRefs of ", self_.name, " were released: it is shutting down")));
  }
  Queue(std::move(releases));
}

// The first release to an owner goes at once; those that come while it is unanswered go together
// in the next message.
void Core::Queue(Releases releases) {
  std::vector<std::string> ready;
  {
    MutexLock lock(mutex_);
    for (ForkRelease& release : releases) {
      Outbox& outbox = outboxes_[release.owner];
      if (!outbox.in_flight && outbox.waiting.empty()) ready.push_back(release.owner);
      outbox.waiting.push_back(std::move(release));
    }
  }
  for (const std::string& owner : ready) SendNext(owner);
}

void Core::SendNext(const std::string& owner) {
  v1::ReleaseForks out;
  Incarnation incarnation = 0;
  {
    MutexLock lock(mutex_);
    auto it = outboxes_.find(owner);
    if (it == outboxes_.end() || it->second.in_flight) return;
    if (it->second.waiting.empty()) {
      outboxes_.erase(it);
      return;
    }
    // One life of the owner per message: another one would refuse it.
    Releases rest;
    incarnation = it->second.waiting.front().owner_incarnation;
    for (ForkRelease& release : it->second.waiting) {
      if (release.owner_incarnation != incarnation ||
          static_cast<size_t>(out.fork_counters_size()) >= kMaxReleasesPerMessage) {
        rest.push_back(std::move(release));
        continue;
      }
      out.add_value_incarnations(release.value.incarnation);
      out.add_value_counters(release.value.counter);
      out.add_fork_incarnations(release.fork.incarnation);
      out.add_fork_counters(release.fork.counter);
    }
    it->second.waiting = std::move(rest);
    it->second.in_flight = true;
  }
  Gate::Entry entry(gate_);
  if (!entry.open()) return;  // the sessions end anyhow, and all forks with them
  rpc::Request request;
  request.method = "rref.release";
  request.only_incarnation = incarnation;
  out.SerializeToString(&request.payload.header);
  rpc::CallOptions options;
  options.timeout = kReleaseTimeout;
  options.wait_for_ready = true;
  // An error means that the session is gone or about to end: the owner has let go by itself.
  agent_.StartCall(owner, std::move(request), options)
      .reply()
      .OnReady([core = shared_from_this(), owner](const absl::StatusOr<rpc::Reply>&) {
        {
          MutexLock lock(core->mutex_);
          core->outboxes_[owner].in_flight = false;
        }
        core->SendNext(owner);
      });
}

RRefContext::Stats Core::stats() const {
  MutexLock lock(mutex_);
  return {owners_.NumValues(), owners_.NumForks(), users_.NumForks(), users_.NumPending()};
}

class Impl : public RRefContext {
 public:
  explicit Impl(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  ~Impl() override {
    core_->ReleaseAll();
    core_->Close();
  }

  RRef LocalRRef(store::EntryPtr entry) override { return core_->Local(std::move(entry)); }
  ForkData ForkFor(const store::EntryPtr& entry, const rpc::PeerInfo& peer,
                   uint64_t session_epoch) override {
    return core_->ForkFor(entry, peer, session_epoch);
  }
  void DropFork(const ForkData& data, const rpc::PeerInfo& peer, uint64_t session_epoch) override {
    core_->DropFork(data, core_->KeyOf(peer, session_epoch));
  }
  absl::StatusOr<RRef> AdoptFork(const ForkData& data) override {
    if (data.value.IsNone() || data.fork.IsNone()) {
      return absl::InvalidArgumentError("an RRef without ids");
    }
    if (data.owner == core_->self().name) return core_->Home(data);
    return core_->User(data, ForkState::kConfirmed);
  }
  RRef NewUserRRef(const std::string& owner, Incarnation owner_incarnation) override {
    ForkData data;
    data.owner = owner;
    data.owner_incarnation = owner_incarnation;
    data.value = core_->NextId();
    data.fork = core_->NextId();
    data.parent = core_->self().name;
    return core_->User(data, ForkState::kPending);
  }
  void Created(const RRef& rref, Incarnation owner_incarnation) override {
    core_->Confirm(rref.body()->fork_id(), owner_incarnation);
    if (const auto* body = dynamic_cast<const UserBody*>(rref.body().get())) {
      body->Confirm(owner_incarnation);
    }
  }
  void CreationFailed(const RRef& rref, absl::Status reason, bool fate_unknown) override {
    absl::Status named = Annotate(reason, absl::StrCat("creation of ", rref.ToString()));
    core_->Fail(rref.body()->fork_id(), named, fate_unknown);
    if (const auto* body = dynamic_cast<const UserBody*>(rref.body().get())) body->Fail(named);
  }
  bool AddCreatorFork(GlobalId value, GlobalId fork, const rpc::PeerInfo& peer,
                      uint64_t session_epoch) override {
    return core_->AddFork(value, fork, core_->KeyOf(peer, session_epoch));
  }
  absl::Status CheckUsable(absl::Span<const RRef> rrefs) const override {
    return core_->Check(rrefs);
  }
  Stats stats() const override { return core_->stats(); }
  void ReleaseAll() override { core_->ReleaseAll(); }

 private:
  const std::shared_ptr<Core> core_;  // shared with handles and the agent's callbacks
};

}  // namespace

std::unique_ptr<RRefContext> RRefContext::Create(rpc::RpcAgent& agent, store::Store& store,
                                                 IdSource& ids) {
  auto core = std::make_shared<Core>(agent, store, ids);
  core->Register();
  return std::make_unique<Impl>(std::move(core));
}

}  // namespace psd::rref
