#include "core/rref/user_ledger.h"

#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::rref {

void UserLedger::Add(const std::string& owner, Incarnation owner_incarnation, GlobalId value,
                     GlobalId fork) {
  auto [it, added] = forks_.try_emplace(fork);
  if (!added) return;
  it->second.owner = owner;
  it->second.owner_incarnation = owner_incarnation;
  it->second.value = value;
  ++num_pending_;
}

std::optional<ForkRelease> UserLedger::Confirm(GlobalId id, SessionKey session) {
  auto it = forks_.find(id);
  if (it == forks_.end() || it->second.state != ForkState::kPending) return std::nullopt;
  if (lost_.Contains(session)) {
    return Fail(id,
                WithRemedy(absl::AbortedError(absl::StrCat(
                               "the session on ", it->second.owner, " (epoch ", session.epoch,
                               ") in which the reference was counted has ended")),
                           "fetch the reference again"),
                /*may_exist=*/false);
  }
  SetState(it->second, ForkState::kConfirmed);
  it->second.owner_incarnation = session.peer;
  it->second.session = session;
  it->second.counted = true;
  return ReleaseIfDue(id);
}

std::optional<ForkRelease> UserLedger::Fail(GlobalId id, absl::Status reason, bool may_exist) {
  auto it = forks_.find(id);
  if (it == forks_.end() || it->second.state != ForkState::kPending) return std::nullopt;
  SetState(it->second, ForkState::kFailed);
  if (!FaultOn("failed_creation_looks_usable")) it->second.failure = std::move(reason);
  it->second.counted = may_exist;
  return ReleaseIfDue(id);
}

std::optional<ForkRelease> UserLedger::Drop(GlobalId id) {
  auto it = forks_.find(id);
  if (it == forks_.end()) return std::nullopt;
  it->second.dropped = true;
  if (FaultOn("drop_not_told_to_the_owner")) return std::nullopt;
  return ReleaseIfDue(id);
}

absl::Status UserLedger::AddChild(GlobalId fork, GlobalId child) {
  PSD_RETURN_IF_ERROR(Check(fork));
  if (!parents_.try_emplace(child, fork).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("fork ", child.ToString(), " is already on its way to another worker"));
  }
  ++forks_.at(fork).children;
  return absl::OkStatus();
}

std::optional<ForkRelease> UserLedger::ChildAccepted(GlobalId child) {
  auto it = parents_.find(child);
  if (it == parents_.end()) return std::nullopt;
  const GlobalId parent = it->second;
  parents_.erase(it);
  auto fork = forks_.find(parent);
  PSD_CHECK(fork != forks_.end() && fork->second.children > 0, "a child in flight has no parent");
  --fork->second.children;
  return ReleaseIfDue(parent);
}

void UserLedger::SessionLost(SessionKey session, const absl::Status& reason) {
  absl::flat_hash_set<GlobalId> lost;
  if (FaultOn("references_survive_a_lost_session")) return;
  lost_.Add(session);
  for (auto& [id, fork] : forks_) {
    if (fork.state == ForkState::kPending || !(fork.session == session)) continue;
    if (fork.state == ForkState::kConfirmed) fork.failure = reason;
    SetState(fork, ForkState::kFailed);
    fork.counted = false;
    fork.children = 0;  // the value's forks there are lost, so there is nothing left to protect
    lost.insert(id);
  }
  for (auto it = parents_.begin(); it != parents_.end();) {
    auto next = std::next(it);
    if (lost.contains(it->second)) parents_.erase(it);
    it = next;
  }
  for (GlobalId id : lost) ReleaseIfDue(id);
}

std::vector<ForkRelease> UserLedger::ReleaseAll(const absl::Status& reason) {
  std::vector<ForkRelease> releases;
  for (auto& [id, fork] : forks_) {
    if (fork.counted || fork.state == ForkState::kPending) {
      releases.push_back({fork.owner, fork.owner_incarnation, fork.value, id});
    }
    if (fork.state != ForkState::kFailed) fork.failure = reason;
    SetState(fork, ForkState::kFailed);
    fork.counted = false;
    fork.children = 0;
  }
  parents_.clear();
  for (auto it = forks_.begin(); it != forks_.end();) {
    auto next = std::next(it);
    if (it->second.dropped) Erase(it);
    it = next;
  }
  return releases;
}

std::vector<ForkRelease> UserLedger::Held(size_t limit) const {
  std::vector<ForkRelease> held;
  for (const auto& [id, fork] : forks_) {
    if (held.size() >= limit) break;
    if (!fork.dropped) held.push_back({fork.owner, fork.owner_incarnation, fork.value, id});
  }
  return held;
}

absl::Status UserLedger::Check(GlobalId id) const {
  auto it = forks_.find(id);
  if (it == forks_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("fork ", id.ToString(), " was released: use a handle that is still held"));
  }
  return it->second.failure;
}

ForkState UserLedger::state(GlobalId id) const {
  auto it = forks_.find(id);
  return it == forks_.end() ? ForkState::kFailed : it->second.state;
}

void UserLedger::SetState(Fork& fork, ForkState state) {
  if (fork.state == ForkState::kPending && state != ForkState::kPending) --num_pending_;
  if (fork.state != ForkState::kFailed && state == ForkState::kFailed) ++num_failed_;
  fork.state = state;
}

void UserLedger::Erase(Forks::iterator it) {
  if (it->second.state == ForkState::kPending) --num_pending_;
  if (it->second.state == ForkState::kFailed) --num_failed_;
  forks_.erase(it);
}

std::optional<ForkRelease> UserLedger::ReleaseIfDue(GlobalId id) {
  auto it = forks_.find(id);
  Fork& fork = it->second;
  if (fork.children > 0 && !FaultOn("parent_does_not_wait_for_its_child")) return std::nullopt;
  if (fork.state == ForkState::kPending && !FaultOn("pending_fork_released")) return std::nullopt;
  std::optional<ForkRelease> release;
  // A failed fork that the owner may count is released at once, because its holder cannot use it.
  if (fork.counted && (fork.dropped || fork.state == ForkState::kFailed)) {
    release = ForkRelease{fork.owner, fork.owner_incarnation, fork.value, id};
    fork.counted = false;
  }
  if (fork.dropped) Erase(it);
  return release;
}

}  // namespace psd::rref
