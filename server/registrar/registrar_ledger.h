#pragma once

// Who is in the job: names, incarnations, ranks, and barriers between them. Pure: no clock, no
// threads, no messages; told what happened, it answers what is to be done.

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

struct Member {
  std::string name;
  Incarnation incarnation = 0;
  uint64_t epoch = 0;  // of the session here in which it joined last
  uint32_t rank = 0;
  Role role = Role::kOwner;
  std::string address;  // empty: it does not listen
};

// Thread-compatible. Guarantees:
//   - Ranks are unique, stay as long as the member does, and are the lowest that were free. A
//     member's next incarnation has the same rank, if the name had not left in between.
//   - An incarnation whose name another one took, while it was a member or after it had left,
//     changes nothing any more; nor does one that asks without having joined.
//   - Every waiter of a barrier is answered exactly once: by completion, by failure, or by having
//     been withdrawn.
class RegistrarLedger {
 public:
  // Who waits in a barrier; chosen by the caller, never reused.
  using Ticket = uint64_t;
  struct Answer {
    Ticket ticket = 0;
    absl::Status status;
  };
  using Answers = std::vector<Answer>;

  // At most so many members, barrier calls that wait, and bytes of the names and sets of barriers.
  static constexpr size_t kMaxMembers = 65'536;
  static constexpr size_t kMaxWaiting = 262'144;
  static constexpr size_t kMaxKeyBytes = size_t{64} << 20;

  struct Joined {
    uint32_t rank = 0;
    uint32_t world_size = 0;
    bool new_member = false;  // false: it had joined before, nothing changed
    Answers answers;          // barriers that fail because an earlier incarnation was replaced
  };
  // `epoch` is that of the member's session here: membership lasts as long as the latest session in
  // which it joined. `group_size` as declared by a trainer; 0: not declared. A name that is held by
  // another incarnation goes to the newcomer: while the holder's session lives the session rules
  // let no newcomer in, so the holder is dead, and only the news of its end is still under way.
  // Errors: ALREADY_EXISTS for an incarnation whose name another one took; FAILED_PRECONDITION for
  // a group size other than the one declared (both named); RESOURCE_EXHAUSTED when the declared
  // group is full, or the world.
  absl::StatusOr<Joined> Join(const std::string& name, Incarnation incarnation, uint64_t epoch,
                              Role role, uint32_t group_size, const std::string& address);

  // Its session of that epoch ended; nothing happens if it has joined in a later one. Rank and name
  // are free, barriers that need it fail with UNAVAILABLE. The last trainer to leave takes the
  // declared group size along.
  Answers Leave(const std::string& name, Incarnation incarnation, uint64_t epoch);

  // Waits for all `members` to have called the barrier of that name. Empty: all trainers of the
  // declared group. A member may wait several times at once (from several threads): its first call
  // meets the others' first, its second their second.
  // Errors, as the answer to `ticket`: FAILED_PRECONDITION (has not joined; no group size was
  // declared), INVALID_ARGUMENT (is not in the set; a repeated member), NOT_FOUND (a member that
  // has not joined), RESOURCE_EXHAUSTED.
  Answers EnterBarrier(Ticket ticket, const std::string& name, Incarnation incarnation,
                       const std::string& barrier, const std::vector<std::string>& members);

  // Who has not arrived where `ticket` waits, by name. Of a declared group of which not all have
  // joined, those that have. None for a ticket that waits no longer.
  std::optional<std::vector<std::string>> Missing(Ticket ticket) const;

  // The waiter has given up: it is not answered. False: it has been answered already.
  bool Withdraw(Ticket ticket);

  // By rank.
  std::vector<Member> World() const;
  // As declared by the trainers here now; 0: not declared.
  uint32_t group_size() const { return group_size_; }
  size_t size() const { return members_.size(); }
  size_t waiting() const { return barrier_of_ticket_.size(); }

 private:
  // Name, then the set.
  using BarrierKey = std::pair<std::string, std::vector<std::string>>;
  // By member: its calls that wait, in order.
  using Barrier = std::map<std::string, std::deque<Ticket>>;
  using Barriers = std::map<BarrierKey, Barrier>;

  const Member* Find(const std::string& name, Incarnation incarnation) const;
  absl::Status CheckGroup(const Member* known, Role role, uint32_t group_size) const;
  absl::Status CheckEntry(const Member* member, const std::vector<std::string>& members) const;
  uint32_t LowestFreeRank() const;
  size_t Trainers() const;
  // The barrier of that key, made if there is none. Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<Barriers::iterator> FindOrAdd(BarrierKey key);
  // The one behind it.
  Barriers::iterator Erase(Barriers::iterator barrier);
  // Removes one call of each member and answers them, if all are there.
  Answers CompleteIfAll(Barriers::iterator barrier);
  // Every barrier that cannot complete without `gone` fails.
  Answers FailBarriersOf(const Member& gone, const absl::Status& status);

  std::map<std::string, Member> members_;  // by name
  std::set<uint32_t> ranks_;               // taken
  uint32_t group_size_ = 0;
  NameFence names_{2 * kMaxMembers};
  Barriers barriers_;
  size_t key_bytes_ = 0;  // of barriers_
  std::map<Ticket, std::pair<Barriers::iterator, std::string>>
      barrier_of_ticket_;  // and its member
};

}  // namespace psd::server
