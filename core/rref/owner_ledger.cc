#include "core/rref/owner_ledger.h"

#include "core/base/faults.h"
#include "core/base/status.h"

namespace psd::rref {

absl::Status OwnerLedger::MakeRoom(SessionKey session) {
  if (memory_ == nullptr || ended_.Contains(session)) return absl::OkStatus();
  return MakeRoomIn(sessions_[session]);
}

absl::Status OwnerLedger::MakeRoomIn(Session& session) {
  if (memory_ == nullptr) return absl::OkStatus();
  const size_t needed = (session.forks.size() + session.deleted.size() + 1) * kForkBytes;
  if (needed <= session.charge.bytes()) return absl::OkStatus();
  return session.charge.Add(*memory_, needed - session.charge.bytes());
}

bool OwnerLedger::AddFork(GlobalId value, GlobalId fork, SessionKey session) {
  if (ended_.Contains(session) && !FaultOn("fork_of_an_ended_session_counted")) return false;
  Session& held = sessions_[session];
  if (held.deleted.Contains(fork) && !FaultOn("deleted_fork_comes_back")) return false;
  auto [it, added] = held.forks.try_emplace(fork, value);
  if (!added && !FaultOn("fork_counted_twice")) return it->second == value;
  ++forks_[value];
  ++num_forks_;
  return true;
}

bool OwnerLedger::DeleteFork(GlobalId value, GlobalId fork, SessionKey session) {
  if (ended_.Contains(session)) return false;
  Session& held = sessions_[session];
  auto it = held.forks.find(fork);
  if (it == held.forks.end()) {
    // If there is no memory, a fork that is added after its delete stays until the session ends.
    if (MakeRoomIn(held).ok()) held.deleted.Add(fork);
    return false;
  }
  if (it->second != value) return false;  // a false claim: the fork belongs to another value
  held.forks.erase(it);
  held.deleted.Add(fork);
  const size_t needed = (held.forks.size() + held.deleted.size()) * kForkBytes;
  if (held.charge.bytes() > needed) held.charge.Subtract(held.charge.bytes() - needed);
  return DropOne(value);
}

std::vector<GlobalId> OwnerLedger::EndSession(SessionKey session) {
  std::vector<GlobalId> freed;
  if (FaultOn("forks_outlive_their_session")) return freed;
  ended_.Add(session);
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return freed;
  for (const auto& [fork, value] : it->second.forks) {
    if (DropOne(value)) freed.push_back(value);
  }
  sessions_.erase(it);
  return freed;
}

size_t OwnerLedger::ForkCount(GlobalId value) const {
  auto it = forks_.find(value);
  return it == forks_.end() ? 0 : it->second;
}

bool OwnerLedger::DropOne(GlobalId value) {
  auto it = forks_.find(value);
  PSD_CHECK(it != forks_.end() && it->second > 0, "a fork was counted for no value");
  --num_forks_;
  if (--it->second > 0) return false;
  forks_.erase(it);
  return true;
}

}  // namespace psd::rref
