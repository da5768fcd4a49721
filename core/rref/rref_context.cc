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

class Impl : public RRefContext {
 public:
  explicit Impl(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  ~Impl() override {
    core_->ReleaseAll();
    core_->EndWaiting();
    core_->Close();
    core_->EndAwaiting();
  }

  RRef LocalRRef(store::EntryPtr entry) override { return core_->Local(std::move(entry)); }
  absl::StatusOr<ForkData> ForkFor(const store::EntryPtr& entry, const rpc::PeerInfo& peer,
                                   uint64_t session_epoch) override {
    return core_->ForkFor(entry, peer, session_epoch);
  }
  void DropFork(const ForkData& data, const rpc::PeerInfo& peer, uint64_t session_epoch) override {
    core_->DropFork(data, core_->KeyOf(peer, session_epoch));
  }
  absl::StatusOr<RRef> AdoptFork(const ForkData& data, uint64_t session_epoch) override {
    if (data.value.IsNone() || data.fork.IsNone()) {
      return absl::InvalidArgumentError("an RRef without ids");
    }
    if (data.owner == data.parent && data.owner != core_->self().name) {
      RRef rref = core_->User(data);
      core_->Confirm(dynamic_cast<const UserBody&>(*rref.body()),
                     {data.owner_incarnation, session_epoch});
      return rref;
    }
    PSD_ASSIGN_OR_RETURN(std::vector<RRef> rrefs, Borrow({data.owner,
                                                          data.owner_incarnation,
                                                          data.parent,
                                                          {{data.value, data.fork, data.name}}}));
    core_->SayCounted(data, rrefs[0]);
    return std::move(rrefs[0]);
  }
  absl::StatusOr<std::vector<RRef>> Borrow(const ForkRun& run) override {
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
  absl::StatusOr<std::vector<RRef>> BorrowUncounted(const ForkRun& run) override {
    // A reference that this worker sent to itself has a fork that must end, which needs a counted
    // handle (Core::Home).
    if (run.owner != core_->self().name || run.parent == run.owner) return Borrow(run);
    PSD_RETURN_IF_ERROR(CheckIds(run));
    return core_->Uncounted(run);
  }
  absl::StatusOr<ForkData> Lend(const RRef& rref, const rpc::PeerInfo& peer,
                                uint64_t session_epoch) override {
    return core_->Lend(rref, peer, session_epoch);
  }
  Future<Unit> Passable(const RRef& rref) override { return core_->Passable(rref); }
  void TakeBack(const ForkData& data, const rpc::PeerInfo& peer, uint64_t session_epoch) override {
    core_->TakeBack(data.fork, core_->KeyOf(peer, session_epoch));
  }
  void FindPeersWith(PeerFinder finder) override { core_->FindPeersWith(std::move(finder)); }
  RRef NewUserRRef(const std::string& owner, Incarnation owner_incarnation) override {
    if (owner == core_->self().name) return core_->NewOwn();
    ForkData data;
    data.owner = owner;
    data.owner_incarnation = owner_incarnation;
    data.value = core_->NextId();
    data.fork = core_->NextId();
    data.parent = core_->self().name;
    return core_->User(data);
  }
  void Created(const RRef& rref, Incarnation owner_incarnation, uint64_t session_epoch) override {
    if (const auto* own = dynamic_cast<const CreatedBody*>(rref.body().get())) {
      return core_->Created(*own);
    }
    if (const auto* body = dynamic_cast<const UserBody*>(rref.body().get()))
      core_->Confirm(*body, {owner_incarnation, session_epoch});
  }
  void CreationFailed(const RRef& rref, absl::Status reason, bool fate_unknown) override {
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
  absl::Status BeginCreation(GlobalId value, GlobalId fork, const rpc::PeerInfo& peer,
                             uint64_t session_epoch) override {
    return core_->BeginCreation(value, fork, core_->KeyOf(peer, session_epoch));
  }
  void EndCreation(GlobalId value, const absl::Status& made) override {
    core_->EndCreation(value, made);
  }
  absl::Status CheckUsable(absl::Span<const RRef> rrefs) const override {
    return core_->Check(rrefs);
  }
  std::vector<std::string> Held(size_t limit) const override { return core_->Held(limit); }
  Stats stats() const override { return core_->stats(); }
  void ReleaseAll() override { core_->ReleaseAll(); }

 private:
  const std::shared_ptr<Core> core_;  // shared with handles and the agent's callbacks
};

}  // namespace

std::unique_ptr<RRefContext> RRefContext::Create(rpc::RpcAgent& agent, store::Store& store,
                                                 IdSource& ids, const Clock& clock,
                                                 TimerQueue& timers,
                                                 std::shared_ptr<Executor> continuations,
                                                 std::shared_ptr<MemoryAccount> memory) {
  auto core = std::make_shared<Core>(agent, store, ids, clock, timers, std::move(continuations),
                                     std::move(memory));
  core->Register();
  return std::make_unique<Impl>(std::move(core));
}

}  // namespace psd::rref
