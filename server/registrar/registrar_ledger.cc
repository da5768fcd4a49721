#include "server/registrar/registrar_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::server {
namespace {

// Returns the memory that the key of a barrier takes.
size_t BytesOf(const std::pair<std::string, std::vector<std::string>>& key) {
  size_t bytes = sizeof(key) + key.first.size();
  for (const std::string& member : key.second) bytes += sizeof(member) + member.size();
  return bytes;
}

absl::Status SessionIsOver(const std::string& member, uint64_t epoch, uint64_t joined_in) {
  return WithRemedy(
      absl::AbortedError(absl::StrCat("barrier: ", member, " entered in its session ", epoch,
                                      ", and has joined again in session ", joined_in)),
      "enter the barrier again");
}

}  // namespace

const Member* RegistrarLedger::Find(const std::string& name, Incarnation incarnation) const {
  auto it = members_.find(name);
  return it != members_.end() && it->second.incarnation == incarnation ? &it->second : nullptr;
}

uint32_t RegistrarLedger::RankFor(std::optional<uint32_t> wanted_rank) const {
  if (wanted_rank.has_value() && *wanted_rank < kMaxMembers && ranks_.count(*wanted_rank) == 0)
    return *wanted_rank;
  uint32_t rank = 0;
  for (uint32_t taken : ranks_) {
    if (taken != rank) break;
    ++rank;
  }
  return rank;
}

size_t RegistrarLedger::Trainers() const {
  return static_cast<size_t>(std::count_if(members_.begin(), members_.end(), [](const auto& entry) {
    return entry.second.role == Role::kTrainer;
  }));
}

absl::Status RegistrarLedger::CheckGroup(const Member* known, Role role,
                                         uint32_t group_size) const {
  if (role == Role::kOwner) return absl::OkStatus();
  // If there is no other trainer, this one may declare another size: it is a trainer that came
  // back.
  const bool was_trainer = known != nullptr && known->role == Role::kTrainer;
  const size_t others = Trainers() - (was_trainer ? 1 : 0);
  if (others == 0) return absl::OkStatus();
  if (group_size != group_size_) {
    return WithRemedy(
        absl::FailedPreconditionError(absl::StrCat("declares a group of ", group_size,
                                                   " trainers where the others declared ",
                                                   group_size_, " (0: not declared)")),
        "give all trainers of the job the same group size");
  }
  if (group_size_ != 0 && others >= group_size_) {
    return WithRemedy(absl::ResourceExhaustedError(absl::StrCat("finds the declared group of ",
                                                                group_size_, " trainers complete")),
                      "declare a larger one, or wait until a member has left");
  }
  return absl::OkStatus();
}

absl::StatusOr<RegistrarLedger::Joined> RegistrarLedger::Join(
    const std::string& name, Incarnation incarnation, uint64_t epoch, Role role,
    uint32_t group_size, const std::string& address, std::optional<uint32_t> wanted_rank) {
  auto it = members_.find(name);
  Member* holder = it == members_.end() ? nullptr : &it->second;
  if (names_.IsFenced(incarnation)) {
    return WithRemedy(
        absl::AlreadyExistsError(absl::StrCat(
            name, " of incarnation ", IncarnationToString(incarnation), " was replaced by ",
            holder == nullptr ? "one that has left" : IncarnationToString(holder->incarnation))),
        "start the worker again");
  }
  Joined joined;
  const bool same_life = holder != nullptr && holder->incarnation == incarnation;
  if (same_life && epoch < holder->epoch) {
    // A request of an earlier session may be handled after one of a later session.
    joined.rank = holder->rank;
    joined.world_size = static_cast<uint32_t>(members_.size());
    return joined;
  }
  absl::Status group = CheckGroup(holder, role, group_size);
  if (!group.ok()) return Annotate(group, name);

  const bool replaces_owner = holder != nullptr && !same_life &&
                              holder->role == Role::kOwner;  // whose end is not known yet
  joined.was_lost = role == Role::kOwner && (replaces_owner || lost_owners_.count(name) > 0);
  if (holder == nullptr) {
    if (members_.size() >= kMaxMembers) {
      return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                            name, " cannot join: the world has ", kMaxMembers, " members")),
                        "wait until a member has left");
    }
    const uint32_t rank = RankFor(wanted_rank);
    ranks_.insert(rank);
    holder = &members_.emplace(name, Member{name, incarnation, epoch, rank, role, address})
                  .first->second;
    joined.new_member = true;
  } else if (holder->incarnation != incarnation) {
    joined.answers = FailBarriersOf(
        *holder, WithRemedy(absl::AbortedError(absl::StrCat(
                                "barrier: ", name, " was restarted (incarnation ",
                                IncarnationToString(holder->incarnation), " is replaced by ",
                                IncarnationToString(incarnation), ")")),
                            "enter the barrier again"));
    joined.new_member = true;
  } else if (holder->epoch < epoch) {
    joined.answers = FailCallsBefore(epoch, name);
  }
  *holder = Member{name, incarnation, epoch, holder->rank, role, address};
  names_.Take(name, incarnation);
  if (role == Role::kOwner) lost_owners_.erase(name);
  if (role == Role::kTrainer) group_size_ = group_size;
  joined.rank = holder->rank;
  joined.world_size = static_cast<uint32_t>(members_.size());
  return joined;
}

RegistrarLedger::Answers RegistrarLedger::Leave(const std::string& name, Incarnation incarnation,
                                                uint64_t epoch, Departure departure) {
  const Member* member = Find(name, incarnation);
  if (member == nullptr || member->epoch > epoch) return {};
  const Member left = *member;
  ranks_.erase(left.rank);
  members_.erase(name);
  if (Trainers() == 0) group_size_ = 0;
  if (left.role == Role::kOwner && departure == Departure::kLost &&
      lost_owners_.size() < kMaxLostOwners)
    lost_owners_.insert(name);
  return FailBarriersOf(
      left, absl::UnavailableError(absl::StrCat("barrier: ", name, " (rank ", left.rank,
                                                ") left the job before all had arrived")));
}

absl::Status RegistrarLedger::CheckEntry(const Member* member, uint64_t epoch,
                                         const std::vector<std::string>& members) const {
  if (member == nullptr) {
    return WithRemedy(absl::FailedPreconditionError(
                          "barrier: this worker has not joined the job, or was replaced"),
                      "join first");
  }
  if (epoch < member->epoch) return SessionIsOver(member->name, epoch, member->epoch);
  if (waiting() >= kMaxWaiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat("barrier: ", kMaxWaiting, " calls wait in barriers already"));
  }
  if (members.empty() && group_size_ == 0) {
    return WithRemedy(
        absl::FailedPreconditionError(
            "barrier: the trainers declared no group size, so nobody knows whom to wait for"),
        "declare one when joining, or name the members");
  }
  if (members.empty() && member->role != Role::kTrainer) {
    return absl::InvalidArgumentError(
        absl::StrCat("barrier: ", member->name, " is no trainer, so not in the declared group"));
  }
  if (std::adjacent_find(members.begin(), members.end()) != members.end())
    return absl::InvalidArgumentError("barrier: a member is named twice");
  if (!members.empty() && !std::binary_search(members.begin(), members.end(), member->name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("barrier: ", member->name, " is not among the members that it named"));
  }
  for (const std::string& name : members) {
    if (members_.count(name) != 0) continue;
    return absl::NotFoundError(absl::StrCat("barrier: ", name, " has not joined the job"));
  }
  return absl::OkStatus();
}

RegistrarLedger::Answers RegistrarLedger::EnterBarrier(Ticket ticket, const std::string& name,
                                                       Incarnation incarnation, uint64_t epoch,
                                                       const std::string& barrier,
                                                       const std::vector<std::string>& members) {
  BarrierKey key{barrier, members};
  std::sort(key.second.begin(), key.second.end());
  absl::Status status = CheckEntry(Find(name, incarnation), epoch, key.second);
  if (!status.ok()) return {{ticket, std::move(status)}};
  absl::StatusOr<Barriers::iterator> found = FindOrAdd(std::move(key));
  if (!found.ok()) return {{ticket, found.status()}};
  (*found)->second[name].push_back(ticket);
  waiting_[ticket] = {*found, name, epoch};
  return CompleteIfAll(*found);
}

absl::StatusOr<RegistrarLedger::Barriers::iterator> RegistrarLedger::FindOrAdd(BarrierKey key) {
  auto found = barriers_.find(key);
  if (found != barriers_.end()) return found;
  const size_t bytes = BytesOf(key);
  if (bytes > kMaxKeyBytes - key_bytes_) {
    return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                          "barrier: its name and members take ", bytes, " bytes, and those of ",
                          barriers_.size(), " others take ", key_bytes_, " of ", kMaxKeyBytes)),
                      "try again later, or meet in the declared group");
  }
  key_bytes_ += bytes;
  return barriers_.emplace(std::move(key), Barrier()).first;
}

RegistrarLedger::Barriers::iterator RegistrarLedger::Erase(Barriers::iterator barrier) {
  key_bytes_ -= BytesOf(barrier->first);
  return barriers_.erase(barrier);
}

RegistrarLedger::Answers RegistrarLedger::CompleteIfAll(Barriers::iterator it) {
  const BarrierKey& key = it->first;
  const size_t needed = key.second.empty() ? group_size_ : key.second.size();
  if (it->second.size() < needed) return {};
  Answers answers;
  for (auto member = it->second.begin(); member != it->second.end();) {
    const Ticket ticket = member->second.front();
    answers.push_back({ticket, absl::OkStatus()});
    waiting_.erase(ticket);
    member->second.pop_front();
    member = member->second.empty() ? it->second.erase(member) : std::next(member);
  }
  if (it->second.empty()) Erase(it);
  return answers;
}

RegistrarLedger::Answers RegistrarLedger::FailBarriersOf(const Member& gone,
                                                         const absl::Status& status) {
  Answers answers;
  for (auto it = barriers_.begin(); it != barriers_.end();) {
    const std::vector<std::string>& set = it->first.second;
    const bool needed = set.empty() ? gone.role == Role::kTrainer
                                    : std::binary_search(set.begin(), set.end(), gone.name);
    if (!needed) {
      ++it;
      continue;
    }
    for (const auto& [member, tickets] : it->second) {
      for (Ticket ticket : tickets) {
        answers.push_back({ticket, status});
        waiting_.erase(ticket);
      }
    }
    it = Erase(it);
  }
  return answers;
}

RegistrarLedger::Answers RegistrarLedger::FailCallsBefore(uint64_t epoch, const std::string& name) {
  Answers answers;
  for (const auto& [ticket, call] : waiting_) {
    if (call.member == name && call.epoch < epoch)
      answers.push_back({ticket, SessionIsOver(name, call.epoch, epoch)});
  }
  for (const Answer& answer : answers) Withdraw(answer.ticket);
  return answers;
}

std::optional<std::vector<std::string>> RegistrarLedger::Missing(Ticket ticket) const {
  auto it = waiting_.find(ticket);
  if (it == waiting_.end()) return std::nullopt;
  const auto& [key, arrived] = *it->second.barrier;
  std::vector<std::string> missing;
  if (!key.second.empty()) {
    for (const std::string& name : key.second) {
      if (arrived.count(name) == 0) missing.push_back(name);
    }
    return missing;
  }
  for (const auto& [name, member] : members_) {
    if (member.role == Role::kTrainer && arrived.count(name) == 0) missing.push_back(name);
  }
  return missing;
}

bool RegistrarLedger::Withdraw(Ticket ticket) {
  auto it = waiting_.find(ticket);
  if (it == waiting_.end()) return false;
  const Barriers::iterator barrier = it->second.barrier;
  auto member = barrier->second.find(it->second.member);
  std::deque<Ticket>& tickets = member->second;
  tickets.erase(std::find(tickets.begin(), tickets.end(), ticket));
  if (tickets.empty()) barrier->second.erase(member);
  if (barrier->second.empty()) Erase(barrier);
  waiting_.erase(it);
  return true;
}

std::vector<Member> RegistrarLedger::World() const {
  std::vector<Member> world;
  world.reserve(members_.size());
  for (const auto& [name, member] : members_) world.push_back(member);
  std::sort(world.begin(), world.end(),
            [](const Member& a, const Member& b) { return a.rank < b.rank; });
  return world;
}

}  // namespace psd::server
