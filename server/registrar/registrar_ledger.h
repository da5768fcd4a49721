#pragma once

// The members of a job with their incarnations and ranks, and the barriers between them. Pure: no
// clock, threads or messages. Its functions take events and return the answers to be sent.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/base/name_fence.h"

namespace psd::server {

enum class Role { kOwner, kTrainer };

// How a member's session ended.
enum class Departure {
  kLost,     // nobody renewed it, or another incarnation took the name
  kOrderly,  // the member said goodbye
};

struct Member {
  std::string name;
  Incarnation incarnation = 0;
  uint64_t epoch = 0;  // the latest session here in which it joined
  uint32_t rank = 0;
  Role role = Role::kOwner;
  std::string address;  // empty if it does not listen
};

// Thread-compatible. Guarantees:
//   - A rank is unique and does not change while its member stays. A new member gets the rank
//     that it wants if that one is free and below kMaxMembers, else the lowest free rank. The next
//     incarnation of a member has the same rank if the name had not left.
//   - Requests of an incarnation whose name another one has taken have no effect, and neither have
//     those of an incarnation that has not joined.
//   - Once a member has joined in a session, its requests of earlier sessions have no effect, and
//     its calls of earlier sessions that wait in barriers fail with ABORTED.
//   - An owner that was lost is listed as such until an owner of that name joins.
//   - Every call that waits in a barrier ends exactly once: it completes, fails, or is withdrawn.
class RegistrarLedger {
 public:
  // Identifies a call that waits in a barrier. Chosen by the caller, never reused.
  using Ticket = uint64_t;
  struct Answer {
    Ticket ticket = 0;
    absl::Status status;
  };
  using Answers = std::vector<Answer>;

  // The most members, waiting barrier calls, and bytes of the names and sets of barriers.
  static constexpr size_t kMaxMembers = 65'536;
  static constexpr size_t kMaxWaiting = 262'144;
  // The most lost owners that are listed; these are the ones that were lost first.
  static constexpr size_t kMaxLostOwners = 4'096;
  static constexpr size_t kMaxKeyBytes = size_t{64} << 20;

  struct Joined {
    uint32_t rank = 0;
    uint32_t world_size = 0;
    bool new_member = false;  // false if it had joined before
    bool was_lost = false;    // it is an owner that was listed as lost until now
    Answers answers;  // calls that fail because an earlier incarnation or session was replaced
  };
  // Adds a member. `epoch` is that of the member's session here; it stays a member as long as the
  // latest session in which it joined. `group_size` is the size that a trainer declares, 0 if it
  // declares none. `wanted_rank` is the rank that an earlier join gave the worker, perhaps through
  // a registrar that was restarted since, or the one that it would like. A name that another
  // incarnation holds goes to the newcomer: the session rules admit no newcomer while the holder's
  // session lives, so the holder is dead, and only the event of its end has not arrived yet.
  // Errors: ALREADY_EXISTS for an incarnation whose name another one took; FAILED_PRECONDITION for
  // a group size other than the declared one, naming both; RESOURCE_EXHAUSTED if the declared group
  // or the job is full.
  absl::StatusOr<Joined> Join(const std::string& name, Incarnation incarnation, uint64_t epoch,
                              Role role, uint32_t group_size, const std::string& address,
                              std::optional<uint32_t> wanted_rank = std::nullopt);

  // Handles the end of a member's session with that epoch. If the member has joined in a later one,
  // nothing happens. Otherwise its rank and name become free, and barriers that need it fail with
  // UNAVAILABLE. When the last trainer leaves, the declared group size is forgotten.
  Answers Leave(const std::string& name, Incarnation incarnation, uint64_t epoch,
                Departure departure = Departure::kLost);

  // Enters a barrier, which completes when all `members` have entered it; if `members` is empty,
  // all trainers of the declared group. A member may wait in one barrier several times at once,
  // from several threads: its first call meets the others' first, its second their second. `epoch`
  // is that of the session in which the caller asks.
  // Errors, as the answer to `ticket`: FAILED_PRECONDITION (the caller has not joined, or no group
  // size was declared), ABORTED (the caller has joined in a later session), INVALID_ARGUMENT (the
  // caller is not in the set, or a member is repeated), NOT_FOUND (a member that has not joined),
  // RESOURCE_EXHAUSTED.
  Answers EnterBarrier(Ticket ticket, const std::string& name, Incarnation incarnation,
                       uint64_t epoch, const std::string& barrier,
                       const std::vector<std::string>& members);

  // Returns the names of the members that have not entered the barrier in which `ticket` waits. If
  // not all trainers of a declared group have joined, only those that have joined can be named.
  // Returns nullopt for a ticket that no longer waits.
  std::optional<std::vector<std::string>> Missing(Ticket ticket) const;

  // Removes a call that was given up, so that it gets no answer. Returns false if it has been
  // answered already.
  bool Withdraw(Ticket ticket);

  // Returns all members by rank.
  std::vector<Member> World() const;
  // The names of the owners that joined and were lost, and that have not joined again.
  const std::set<std::string>& lost_owners() const { return lost_owners_; }
  // The group size that the present trainers have declared; 0 if none.
  uint32_t group_size() const { return group_size_; }
  size_t size() const { return members_.size(); }
  size_t waiting() const { return waiting_.size(); }

 private:
  // The barrier's name and its set of members.
  using BarrierKey = std::pair<std::string, std::vector<std::string>>;
  // For each member its calls that wait, in order.
  using Barrier = std::map<std::string, std::deque<Ticket>>;
  using Barriers = std::map<BarrierKey, Barrier>;
  struct WaitingCall {
    Barriers::iterator barrier;
    std::string member;
    uint64_t epoch = 0;  // of the session in which the call came
  };

  const Member* Find(const std::string& name, Incarnation incarnation) const;
  absl::Status CheckGroup(const Member* known, Role role, uint32_t group_size) const;
  absl::Status CheckEntry(const Member* member, uint64_t epoch,
                          const std::vector<std::string>& members) const;
  uint32_t RankFor(std::optional<uint32_t> wanted_rank) const;
  size_t Trainers() const;
  // Returns the barrier with that key, and makes it if there is none. Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<Barriers::iterator> FindOrAdd(BarrierKey key);
  // Removes the barrier and returns the next one.
  Barriers::iterator Erase(Barriers::iterator barrier);
  // Removes one call of each member and answers them, if all are there.
  Answers CompleteIfAll(Barriers::iterator barrier);
  // Fails every barrier that cannot complete without `gone`.
  Answers FailBarriersOf(const Member& gone, const absl::Status& status);
  // Fails the waiting calls of a member that came in sessions before `epoch`.
  Answers FailCallsBefore(uint64_t epoch, const std::string& name);

  std::map<std::string, Member> members_;  // by name
  std::set<uint32_t> ranks_;               // taken
  std::set<std::string> lost_owners_;
  uint32_t group_size_ = 0;
  NameFence names_{2 * kMaxMembers};
  Barriers barriers_;
  size_t key_bytes_ = 0;  // total of barriers_
  std::map<Ticket, WaitingCall> waiting_;
};

}  // namespace psd::server
