#include "core/rref/rref_context.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/rref/rref_core.h"

namespace psd::rref {
namespace {

absl::Status CheckIds(const ForkRun& run) {
  for (const ForkRun::Fork& fork : run.forks) {
    if (fork.value.IsNone()) return absl::InvalidArgumentError("an RRef without ids");
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<RRefContext> RRefContext::Create(rpc::RpcAgent& agent, store::Store& store,
                                                 IdSource& ids, const Clock& clock,
                                                 TimerQueue& timers,
                                                 std::shared_ptr<Executor> continuations,
                                                 std::shared_ptr<MemoryAccount> memory) {
  auto core = std::make_shared<Core>(agent, store, ids, clock, timers, std::move(continuations),
                                     std::move(memory));
  core->Register();
  return std::unique_ptr<RRefContext>(new RRefContext(std::move(core)));
}

RRefContext::RRefContext(std::shared_ptr<Core> core) : core_(std::move(core)) {}

RRefContext::~RRefContext() {
  core_->ReleaseAll();
  core_->EndWaiting();
  core_->Close();
  core_->EndAwaiting();
}

RRef RRefContext::LocalRRef(store::EntryPtr entry) {
  return core_->Local(std::move(entry));
}

absl::StatusOr<ForkData> RRefContext::ForkFor(const store::EntryPtr& entry,
                                              const rpc::PeerInfo& peer, uint64_t session_epoch) {
  return core_->ForkFor(entry, peer, session_epoch);
}

void RRefContext::DropFork(const ForkData& data, const rpc::PeerInfo& peer,
                           uint64_t session_epoch) {
  core_->DropFork(data, core_->KeyOf(peer, session_epoch));
}

absl::StatusOr<RRef> RRefContext::AdoptFork(const ForkData& data, uint64_t session_epoch) {
  if (data.value.IsNone() || data.fork.IsNone()) {
    return absl::InvalidArgumentError("an RRef without ids");
  }
  if (data.owner == data.parent && data.owner != core_->self().name) {
    RRef rref = core_->User(data);
    core_->Confirm(dynamic_cast<const UserBody&>(*rref.body()),
                   {data.owner_incarnation, session_epoch});
    return rref;
  }
  PSD_ASSIGN_OR_RETURN(
      std::vector<RRef> rrefs,
      Borrow(
          {data.owner, data.owner_incarnation, data.parent, {{data.value, data.fork, data.name}}}));
  core_->SayCounted(data, rrefs[0]);
  return std::move(rrefs[0]);
}

absl::StatusOr<std::vector<RRef>> RRefContext::Borrow(const ForkRun& run) {
  PSD_RETURN_IF_ERROR(CheckIds(run));
  if (run.owner == core_->self().name) return core_->Home(run);
  std::vector<RRef> borrowed;
  borrowed.reserve(run.forks.size());
  for (const ForkRun::Fork& fork : run.forks) {
    PSD_ASSIGN_OR_RETURN(RRef rref, core_->Borrow(run.DataOf(fork)));
    borrowed.push_back(std::move(rref));
  }
  return borrowed;
}

absl::StatusOr<std::vector<RRef>> RRefContext::BorrowUncounted(const ForkRun& run) {
  // A reference that this worker sent to itself has a fork that must end, which needs a counted
  // handle (Core::Home).
  if (run.owner != core_->self().name || run.parent == run.owner) return Borrow(run);
  PSD_RETURN_IF_ERROR(CheckIds(run));
  return core_->Uncounted(run);
}

absl::StatusOr<ForkData> RRefContext::Lend(const RRef& rref, const rpc::PeerInfo& peer,
                                           uint64_t session_epoch) {
  return core_->Lend(rref, peer, session_epoch);
}

Future<Unit> RRefContext::Passable(const RRef& rref) {
  return core_->Passable(rref);
}

void RRefContext::TakeBack(const ForkData& data, const rpc::PeerInfo& peer,
                           uint64_t session_epoch) {
  core_->TakeBack(data.fork, core_->KeyOf(peer, session_epoch));
}

void RRefContext::FindPeersWith(PeerFinder finder) {
  core_->FindPeersWith(std::move(finder));
}

RRef RRefContext::NewUserRRef(const std::string& owner, Incarnation owner_incarnation) {
  if (owner == core_->self().name) return core_->NewOwn();
  ForkData data;
  data.owner = owner;
  data.owner_incarnation = owner_incarnation;
  data.value = core_->NextId();
  data.fork = core_->NextId();
  data.parent = core_->self().name;
  return core_->User(data);
}

void RRefContext::Created(const RRef& rref, Incarnation owner_incarnation, uint64_t session_epoch) {
  if (const auto* own = dynamic_cast<const CreatedBody*>(rref.body().get())) {
    return core_->Created(*own);
  }
  if (const auto* body = dynamic_cast<const UserBody*>(rref.body().get()))
    core_->Confirm(*body, {owner_incarnation, session_epoch});
}

void RRefContext::CreationFailed(const RRef& rref, absl::Status reason, bool fate_unknown) {
  absl::Status named = Annotate(reason, absl::StrCat("creation of ", rref.ToString()));
  if (const auto* own = dynamic_cast<const CreatedBody*>(rref.body().get())) {
    ForkData data;
    data.value = own->value_id();
    data.fork = own->fork_id();
    core_->DropFork(data, core_->KeyOf(core_->self(), 0));
    return own->Fail(named);
  }
  core_->Fail(rref.body()->fork_id(), named, fate_unknown);
  if (const auto* body = dynamic_cast<const UserBody*>(rref.body().get())) body->Fail(named);
}

absl::Status RRefContext::BeginCreation(GlobalId value, GlobalId fork, const rpc::PeerInfo& peer,
                                        uint64_t session_epoch) {
  return core_->BeginCreation(value, fork, core_->KeyOf(peer, session_epoch));
}

void RRefContext::EndCreation(GlobalId value, const absl::Status& made) {
  core_->EndCreation(value, made);
}

absl::Status RRefContext::CheckUsable(absl::Span<const RRef> rrefs) const {
  return core_->Check(rrefs);
}

std::vector<std::string> RRefContext::Held(size_t limit) const {
  return core_->Held(limit);
}

RRefContext::Stats RRefContext::stats() const {
  return core_->stats();
}

void RRefContext::ReleaseAll() {
  core_->ReleaseAll();
}

}  // namespace psd::rref
