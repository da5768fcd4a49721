#include "core/rref/rref_core.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::rref {

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
std::shared_ptr<Executor> UserBody::continuations() const {
  return core_->continuations();
}
Incarnation LocalBody::owner_incarnation() const {
  return core_->self().incarnation;
}
CountedLocalBody::~CountedLocalBody() {
  core_->LocalGone(entry_);
}
CreatedBody::~CreatedBody() {
  if (entry_ != nullptr) core_->LocalGone(entry_);
}
const std::string& CreatedBody::owner() const {
  return core_->self().name;
}
Incarnation CreatedBody::owner_incarnation() const {
  return core_->self().incarnation;
}
UserBody::~UserBody() {
  core_->UserGone(data_.fork);
}

namespace {

std::vector<GlobalId> ValuesOf(const ForkRun& run) {
  std::vector<GlobalId> values;
  values.reserve(run.forks.size());
  for (const ForkRun::Fork& fork : run.forks) values.push_back(fork.value);
  return values;
}

}  // namespace

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
  agent_.OnSessionLost(
      [core = shared_from_this()](const rpc::PeerInfo& peer, const absl::Status& reason) {
        MutexLock lock(core->mutex_);
        core->users_.SessionLost(peer.name, peer.incarnation, reason);
      });
}

// ---- owner

RRef Core::Local(store::EntryPtr entry) {
  return std::move(LocalAll({std::move(entry)})[0]);
}

std::vector<RRef> Core::LocalAll(std::vector<store::EntryPtr> entries) {
  {
    MutexLock lock(mutex_);
    for (const store::EntryPtr& entry : entries) ++handles_[entry->id];
  }
  const std::shared_ptr<Core> self = shared_from_this();
  std::vector<RRef> rrefs;
  rrefs.reserve(entries.size());
  for (store::EntryPtr& entry : entries)
    rrefs.emplace_back(std::make_shared<const CountedLocalBody>(self, std::move(entry)));
  return rrefs;
}

// All in one piece of memory, which the last of them frees.
absl::StatusOr<std::vector<RRef>> Core::Uncounted(const ForkRun& run) {
  PSD_ASSIGN_OR_RETURN(std::vector<store::EntryPtr> entries, store_.GetAll(ValuesOf(run)));
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

void Core::LocalGone(const store::EntryPtr& entry) {
  {
    MutexLock lock(mutex_);
    auto it = handles_.find(entry->id);
    if (--it->second > 0) return;
    handles_.erase(it);
    if (owners_.ForkCount(entry->id) > 0) return;  // who drops the last fork sees to it
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

RRef Core::User(const ForkData& data, ForkState state, bool borrowed) {
  {
    MutexLock lock(mutex_);
    users_.Add(data.owner, data.owner_incarnation, data.value, data.fork, state);
  }
  auto body = std::make_shared<const UserBody>(shared_from_this(), data, borrowed);
  if (state == ForkState::kConfirmed) body->Confirm(data.owner_incarnation);
  return RRef(std::move(body));
}

// The forks that kept the values on their way end when there are handles here.
absl::StatusOr<std::vector<RRef>> Core::Home(const ForkRun& run) {
  const std::vector<GlobalId> values = ValuesOf(run);
  absl::StatusOr<std::vector<store::EntryPtr>> entries = store_.GetAll(values);
  std::vector<RRef> local;
  if (entries.ok()) local = LocalAll(*std::move(entries));
  if (run.parent == self_.name) {
    MutexLock lock(mutex_);
    for (const ForkRun::Fork& fork : run.forks)
      owners_.DeleteFork(fork.value, fork.fork, {self_.incarnation, 0});
  }
  if (entries.ok()) return local;
  if (run.parent == self_.name) FreeIfUnheld(values);
  return entries.status();
}

void Core::UserGone(GlobalId fork) {
  std::optional<ForkRelease> release;
  {
    MutexLock lock(mutex_);
    release = users_.Drop(fork);
  }
  if (release.has_value()) Queue({*release});
}

void Core::Confirm(GlobalId fork, Incarnation owner) {
  std::optional<ForkRelease> release;
  {
    MutexLock lock(mutex_);
    release = users_.Confirm(fork, owner);
  }
  if (release.has_value()) Queue({*release});
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
  if (rrefs.empty()) return absl::OkStatus();  // as most calls: no wait for the lock
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
      if (rrefs[at].is_owner()) continue;  // whether it could be made, its confirmation says
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
