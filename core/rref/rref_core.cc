#include "core/rref/rref_core.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::rref {
namespace {

absl::Status BeingMade(GlobalId value) {
  return WithRemedy(
      absl::FailedPreconditionError(absl::StrCat("value ", value.ToString(), " is being made")),
      "wait for made()");
}

std::vector<GlobalId> ValuesOf(const ForkRun& run) {
  std::vector<GlobalId> values;
  values.reserve(run.forks.size());
  for (const ForkRun::Fork& fork : run.forks) values.push_back(fork.value);
  return values;
}

}  // namespace

LocalBody::LocalBody(std::shared_ptr<Core> core, store::EntryPtr entry)
    : core_(std::move(core)), entry_(std::move(entry)) {}
const std::string& LocalBody::owner() const {
  return core_->self().name;
}
std::shared_ptr<Executor> LocalBody::continuations() const {
  return core_->continuations();
}
std::shared_ptr<Executor> CreatedBody::continuations() const {
  return core_->continuations();
}
std::shared_ptr<Executor> AwaitedBody::continuations() const {
  return core_->continuations();
}
std::shared_ptr<Executor> UserBody::continuations() const {
  return core_->continuations();
}
Incarnation LocalBody::owner_incarnation() const {
  return core_->self().incarnation;
}
CountedLocalBody::~CountedLocalBody() {
  core_->LocalGone(entry_->id);
}
CreatedBody::~CreatedBody() {
  if (entry_ != nullptr) core_->LocalGone(value_);
}
absl::StatusOr<store::EntryPtr> CreatedBody::local_entry() const {
  const Future<Unit> created = confirmed();
  if (!created.IsReady()) return BeingMade(value_);
  PSD_RETURN_IF_ERROR(created.Wait());
  return entry_;
}
const std::string& CreatedBody::owner() const {
  return core_->self().name;
}
Incarnation CreatedBody::owner_incarnation() const {
  return core_->self().incarnation;
}
AwaitedBody::~AwaitedBody() {
  core_->LocalGone(value_);
}
const std::string& AwaitedBody::owner() const {
  return core_->self().name;
}
Incarnation AwaitedBody::owner_incarnation() const {
  return core_->self().incarnation;
}
absl::StatusOr<store::EntryPtr> AwaitedBody::local_entry() const {
  return entry_.IsReady() ? entry_.Wait() : BeingMade(value_);
}
UserBody::~UserBody() {
  core_->UserGone(data_.fork);
}
absl::StatusOr<store::EntryPtr> UserBody::local_entry() const {
  return WithRemedy(absl::FailedPreconditionError(
                        absl::StrCat("value ", data_.value.ToString(), " has no local value on ",
                                     core_->self().name, ": its owner is ", data_.owner)),
                    "fetch it with ToHere");
}

void Core::Register() {
  using Serve = void (Core::*)(const std::shared_ptr<rpc::ServerCall>&);
  auto add = [this](const char* name, rpc::MethodKind kind, Serve serve) {
    agent_.RegisterMethod({name, kind, rpc::RunsOn::kCarrierThread,
                           [core = shared_from_this(), serve](
                               std::shared_ptr<rpc::ServerCall> call) { (*core.*serve)(call); }});
  };
  add("rref.release", rpc::MethodKind::kMutation, &Core::OnRelease);
  add("rref.fork", rpc::MethodKind::kMutation, &Core::OnFork);
  add("rref.counted", rpc::MethodKind::kMutation, &Core::OnCounted);
  add("rref.begun", rpc::MethodKind::kRead, &Core::OnBegun);
  add("rref.made", rpc::MethodKind::kRead, &Core::OnMade);
  agent_.OnSessionEnded([core = shared_from_this()](const rpc::PeerInfo& peer, uint64_t epoch) {
    core->OnSessionEnded(peer, epoch);
  });
  agent_.OnSessionLost([core = shared_from_this()](const rpc::PeerInfo& peer, uint64_t epoch,
                                                   const absl::Status& reason) {
    MutexLock lock(core->mutex_);
    core->users_.SessionLost({peer.incarnation, epoch}, reason);
  });
}

// ---- owner

RRef Core::Local(store::EntryPtr entry) {
  {
    MutexLock lock(mutex_);
    ++handles_[entry->id];
  }
  return RRef(std::make_shared<const CountedLocalBody>(shared_from_this(), std::move(entry)));
}

// All handles are in one allocation, which is freed with the last of them.
absl::StatusOr<std::vector<RRef>> Core::Uncounted(const ForkRun& run) {
  absl::StatusOr<std::vector<store::EntryPtr>> found = store_.GetAll(ValuesOf(run));
  if (!found.ok()) return Home(run);  // some of them may be under creation
  std::vector<store::EntryPtr> entries = *std::move(found);
  const std::shared_ptr<Core> self = shared_from_this();
  const auto bodies = std::make_shared<std::vector<LocalBody>>();
  bodies->reserve(entries.size());
  std::vector<RRef> rrefs;
  rrefs.reserve(entries.size());
  for (store::EntryPtr& entry : entries) {
    const LocalBody& body = bodies->emplace_back(self, std::move(entry));
    rrefs.emplace_back(std::shared_ptr<const RRef::Body>(bodies, &body));
  }
  return rrefs;
}

RRef Core::NewOwn() {
  const GlobalId value = ids_.Next(), fork = ids_.Next();
  return RRef(std::make_shared<const CreatedBody>(shared_from_this(), value, fork));
}

void Core::Created(const CreatedBody& body) {
  auto entry = store_.Get(body.value_id());
  if (!entry.ok()) return body.Fail(entry.status());
  {
    MutexLock lock(mutex_);
    ++handles_[body.value_id()];
    owners_.DeleteFork(body.value_id(), body.fork_id(), {self_.incarnation, 0});
  }
  body.Created(*std::move(entry));
}

std::vector<Future<store::EntryPtr>> Core::Hold(absl::Span<const GlobalId> values) {
  std::vector<Future<store::EntryPtr>> making(values.size());
  MutexLock lock(mutex_);
  for (size_t i = 0; i < values.size(); ++i) {
    ++handles_[values[i]];
    if (creations_.UnderWay(values[i])) making[i] = awaited_[values[i]].future();
  }
  return making;
}

void Core::LocalGone(absl::Span<const GlobalId> values) {
  std::vector<GlobalId> unheld;
  {
    MutexLock lock(mutex_);
    for (GlobalId value : values) {
      auto it = handles_.find(value);
      if (--it->second > 0) continue;
      handles_.erase(it);
      // If there are forks, the code that deletes the last fork frees the value.
      if (owners_.ForkCount(value) == 0) unheld.push_back(value);
    }
  }
  if (!unheld.empty()) FreeIfUnheld(unheld);
}

// Named values are kept by their name: the store erases anonymous values only. The counts are
// looked up and the value is erased under one lock, so no handle or fork can be counted in between.
// Other code counts first and then looks the value up in the store, so a value that it finds stays.
void Core::FreeIfUnheld(absl::Span<const GlobalId> values) {
  Gate::Entry entry(gate_);
  if (!entry.open()) return;
  for (GlobalId value : values) {
    store::Store::Erased erased;  // destroyed after the lock is released: it may hold references
    MutexLock lock(mutex_);
    if (handles_.contains(value) || owners_.ForkCount(value) > 0) continue;
    erased = store_.Erase(value);
  }
}

absl::StatusOr<ForkData> Core::ForkFor(const store::EntryPtr& entry, const rpc::PeerInfo& peer,
                                       uint64_t epoch) {
  ForkData data;
  data.owner = self_.name;
  data.owner_incarnation = self_.incarnation;
  data.value = entry->id;
  data.fork = ids_.Next();
  data.parent = self_.name;
  data.name = entry->name;
  const SessionKey session = KeyOf(peer, epoch);
  const absl::Status counted = AddFork(data.value, data.fork, session);
  if (absl::IsResourceExhausted(counted)) return counted;
  // The fork was counted first, so a value that is found here now stays.
  absl::Status here = store_.Get(data.value).status();
  if (here.ok()) return data;
  MutexLock lock(mutex_);
  owners_.DeleteFork(data.value, data.fork, session);
  return here;
}

absl::Status Core::AddFork(GlobalId value, GlobalId fork, SessionKey session) {
  MutexLock lock(mutex_);
  return AddForkLocked(value, fork, session);
}

absl::Status Core::AddForkLocked(GlobalId value, GlobalId fork, SessionKey session) {
  // References of this worker to its own values are not charged.
  if (session.peer != self_.incarnation)
    PSD_RETURN_IF_ERROR(Annotate(owners_.MakeRoom(session), self_.name));
  if (owners_.AddFork(value, fork, session)) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("fork ", fork.ToString(), " was released, or its session has ended"));
}

void Core::DropFork(const ForkData& data, SessionKey session) {
  {
    MutexLock lock(mutex_);
    if (!owners_.DeleteFork(data.value, data.fork, session)) return;
  }
  FreeIfUnheld({data.value});
}

void Core::OnSessionEnded(const rpc::PeerInfo& peer, uint64_t epoch) {
  if (peer.incarnation == self_.incarnation) return;
  std::vector<GlobalId> freed;
  Releases releases;
  {
    MutexLock lock(mutex_);
    freed = owners_.EndSession({peer.incarnation, epoch});
    for (GlobalId child : loans_.EndSession({peer.incarnation, epoch})) {
      std::optional<ForkRelease> release = users_.ChildAccepted(child);
      if (release.has_value()) releases.push_back(*std::move(release));
    }
  }
  FreeIfUnheld(freed);
  Queue(releases);
}

// ---- user

RRef Core::User(const ForkData& data, bool borrowed) {
  {
    MutexLock lock(mutex_);
    users_.Add(data.owner, data.owner_incarnation, data.value, data.fork);
  }
  return RRef(std::make_shared<const UserBody>(shared_from_this(), data, borrowed));
}

// The handles are counted first, so a value that is found here now, or is being made, stays. Forks
// that kept the values during the transfer end once there are handles here.
absl::StatusOr<std::vector<RRef>> Core::Home(const ForkRun& run) {
  Gate::Entry entry(gate_);
  if (!entry.open()) return absl::CancelledError(absl::StrCat(self_.name, " is shutting down"));
  const std::vector<GlobalId> values = ValuesOf(run);
  const std::vector<Future<store::EntryPtr>> making = Hold(values);
  std::vector<GlobalId> made;
  for (size_t i = 0; i < values.size(); ++i)
    if (!making[i].valid()) made.push_back(values[i]);
  absl::StatusOr<std::vector<store::EntryPtr>> entries = store_.GetAll(made);
  if (run.parent == self_.name) {
    MutexLock lock(mutex_);
    for (const ForkRun::Fork& fork : run.forks)
      owners_.DeleteFork(fork.value, fork.fork, {self_.incarnation, 0});
  }
  if (!entries.ok()) {
    LocalGone(values);
    return entries.status();
  }
  return Handles(values, making, *std::move(entries));
}

std::vector<RRef> Core::Handles(absl::Span<const GlobalId> values,
                                absl::Span<const Future<store::EntryPtr>> making,
                                std::vector<store::EntryPtr> made) {
  const std::shared_ptr<Core> self = shared_from_this();
  std::vector<RRef> rrefs;
  rrefs.reserve(values.size());
  size_t next = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (making[i].valid()) {
      rrefs.emplace_back(std::make_shared<const AwaitedBody>(self, values[i], making[i]));
    } else {
      rrefs.emplace_back(std::make_shared<const CountedLocalBody>(self, std::move(made[next++])));
    }
  }
  return rrefs;
}

void Core::UserGone(GlobalId fork) {
  std::optional<ForkRelease> release;
  {
    MutexLock lock(mutex_);
    release = users_.Drop(fork);
  }
  if (release.has_value()) Queue({*release});
}

bool Core::Confirm(const UserBody& body, SessionKey session) {
  std::optional<ForkRelease> release;
  absl::Status usable;
  {
    MutexLock lock(mutex_);
    release = users_.Confirm(body.fork_id(), session);
    usable = users_.Check(body.fork_id());
  }
  if (release.has_value()) Queue({*release});
  if (usable.ok()) {
    body.Confirm(session.peer);
  } else {
    body.Fail(usable);
  }
  return usable.ok();
}

void Core::Fail(GlobalId fork, absl::Status reason, bool may_exist) {
  std::optional<ForkRelease> release;
  {
    MutexLock lock(mutex_);
    release = users_.Fail(fork, std::move(reason), may_exist);
  }
  if (release.has_value()) Queue({*release});
}

absl::Status Core::Check(absl::Span<const RRef> rrefs) const {
  if (rrefs.empty()) return absl::OkStatus();  // the most frequent case; it needs no lock
  for (const RRef& rref : rrefs) {
    if (!rref.valid()) return absl::InvalidArgumentError("an RRef that refers to nothing");
  }
  absl::Status status;
  size_t at = 0;
  {
    MutexLock lock(mutex_);
    const bool all_usable = users_.AllUsable();
    for (; at < rrefs.size(); ++at) {
      if (all_usable && rrefs[at].body()->context() == this) continue;
      if (rrefs[at].is_owner()) continue;  // confirmed() says whether the value could be made
      status = users_.Check(rrefs[at].body()->fork_id());
      if (!status.ok()) break;
    }
  }
  return status.ok() ? status : Annotate(status, rrefs[at].ToString());
}

std::vector<std::string> Core::Held(size_t limit) const {
  Releases held;
  {
    MutexLock lock(mutex_);
    held = users_.Held(limit);
  }
  std::vector<std::string> texts;
  texts.reserve(held.size());
  for (const ForkRelease& fork : held) {
    texts.push_back(absl::StrCat("RRef(", fork.value.ToString(), " on ", fork.owner, ", fork ",
                                 fork.fork.ToString(), ")"));
  }
  return texts;
}

RRefContext::Stats Core::stats() const {
  MutexLock lock(mutex_);
  size_t releases = 0;
  for (const auto& [owner, outbox] : outboxes_) releases += outbox.size();
  return {owners_.NumValues(), owners_.NumForks(), users_.NumForks(),
          users_.NumPending(), loans_.size(),      releases};
}

}  // namespace psd::rref
