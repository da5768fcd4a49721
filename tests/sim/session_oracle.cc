// World: the oracle. It knows what each answer gives and who is a member where, and judges a
// history.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "tests/sim/session_world.h"

namespace psd::rpc::sim {

std::shared_ptr<SimGrant> World::Give(const Process& process, const std::shared_ptr<SimCall>& call,
                                      uint64_t epoch) {
  if (process.sessions->table().Find(epoch) == nullptr) return nullptr;
  auto grant = std::make_shared<SimGrant>();
  grant->at = process.id;
  grant->epoch = epoch;
  grant->call = call;
  given_.push_back(grant);
  return grant;
}

void World::Take(SimGrant& grant) {
  if (!grant.held && SessionLives(grant)) broken_ = "a caller takes what was taken back";
  grant.taken = true;
}

void World::TakeBack(const SimAnswer& dropped) {
  if (dropped.gives == nullptr) return;
  if (dropped.gives->taken) broken_ = "what a caller has is taken back";
  dropped.gives->held = false;
}

void World::EndGrants(const Process& process, uint64_t epoch) {
  for (const auto& grant : given_) {
    if (grant->at == process.id && grant->epoch == epoch) grant->held = false;
  }
}

void World::EndSession(Process& process, const PeerInfo& peer, uint64_t epoch) {
  EndGrants(process, epoch);
  const uint64_t of_latest = process.joined[peer.name];
  process.members.Leave(peer.name, peer.incarnation,
                        rules_.notices_carry_epochs ? epoch : of_latest);
}

void World::Join(Process& process, const Process& caller, uint64_t epoch) {
  auto joined =
      process.members.Join(caller.name, caller.incarnation, epoch, server::Role::kTrainer, 0, "");
  if (joined.ok()) process.joined[caller.name] = epoch;
}

// ---------------------------------------------------------------- the oracle

bool World::Settled() const {
  const bool calls = std::all_of(calls_.begin(), calls_.end(), [this](const auto& call) {
    return call->orphaned || call->completed > 0;
  });
  const bool leaks = std::any_of(given_.begin(), given_.end(),
                                 [this](const auto& grant) { return Leaks(*grant); });
  return calls && !leaks && JudgeMembers().empty() && JudgeKept().empty();
}

// Whether the session in which the grant was given still lives at the process that gave it.
bool World::SessionLives(const SimGrant& grant) const {
  const Process& giver = *processes_[grant.at];
  return giver.alive && giver.sessions->table().sessions().count(grant.epoch) > 0;
}

// Whether a grant is held here for a caller that will never be told of it. A session without memory
// forgets which reads were given up and may run a late copy of one; what its answer gives stays
// until the session ends.
bool World::Leaks(const SimGrant& grant) const {
  if (memory_bytes_ != 0 && grant.call->kind == MethodKind::kRead) return false;
  return grant.held && !grant.taken && processes_[grant.at]->alive;
}

// Checks that nothing of a call that is over stays at its callee.
std::string World::JudgeKept() const {
  for (const auto& process : processes_) {
    if (!process->alive) continue;
    const auto& sessions = process->sessions->table().sessions();
    for (const auto& [epoch, session] : sessions) {
      if (session->running() > 0) return absl::StrCat(process->name, " runs a call for ever");
      if (session->remembered() > 0 || session->remembered_bytes() > 0)
        return absl::StrCat(process->name, " remembers an answer for ever");
    }
    if (process->memory != nullptr &&
        process->memory->used_bytes() != sessions.size() * CalleeSession::kSessionBytes) {
      return absl::StrCat(process->name, " has ", process->memory->used_bytes(),
                          " bytes charged for ", sessions.size(), " sessions without a call");
    }
  }
  return "";
}

std::string World::Judge() const {
  if (!broken_.empty()) return broken_;
  if (std::string verdict = JudgeMembers(); !verdict.empty()) return verdict;
  for (const auto& grant : given_) {
    if (Leaks(*grant))
      return absl::StrCat("call ", grant->call->uid, " to ", grant->call->peer,
                          ": nobody takes what an answer gives, and it is kept");
  }
  for (const auto& call : calls_) {
    std::string verdict = JudgeCall(*call);
    if (verdict.empty()) continue;
    return absl::StrCat("call ", call->uid, " from process ", call->caller, " to ", call->peer,
                        ": ", verdict, " (", call->status.ToString(), ")");
  }
  return JudgeKept();
}

// Checks that a worker that joined is a member exactly as long as the session in which it joined
// lives.
std::string World::JudgeMembers() const {
  for (const auto& process : processes_) {
    if (!process->alive) continue;
    std::map<std::string, uint64_t> members;  // with the epochs of their sessions
    for (const server::Member& member : process->members.World()) {
      members[member.name] = member.epoch;
    }
    for (const auto& [name, epoch] : process->joined) {
      const bool lives = process->sessions->table().sessions().count(epoch) > 0;
      if (lives != (members.count(name) > 0)) {
        return absl::StrCat(name, lives ? " is no member of " : " is still a member of ",
                            process->name);
      }
    }
  }
  return "";
}

std::string World::JudgeCall(const SimCall& call) const {
  if (call.applied_at.size() > 1) return "applied twice";
  if (call.completed > 1) return "completed twice";
  if (call.only_incarnation != 0 && !call.applied_at.empty() &&
      call.applied_at[0] != call.only_incarnation) {
    return "applied at another incarnation than it was for";
  }
  if (call.orphaned) return "";
  if (call.completed == 0) return "waits for ever";
  bool mutation = call.kind == MethodKind::kMutation;
  if (call.status.ok()) {
    if (mutation && call.applied_at.empty()) return "lost: answered OK, but not applied";
    if (mutation && call.applied_at[0] != call.answered_by)
      return "answered by another incarnation";
    return "";
  }
  auto detail = GetDetail(call.status);
  bool fate_unknown = detail.has_value() && detail->fate_unknown;
  if (!fate_unknown && !call.applied_at.empty()) return "failed as not applied, but was applied";
  return "";
}

}  // namespace psd::rpc::sim
