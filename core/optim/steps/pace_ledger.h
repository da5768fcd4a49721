#pragma once

// Decides whose step may run now, so that no gradient gets more than `bound` steps old. Pure.
//
// The clock counts applied steps. A member computes its next gradients after its last step was
// applied. The clock at that moment is the member's *floor*. Its next step is at most `bound` old
// if it runs when the clock is at most floor + bound, the member's *deadline*. A step may run if
// afterwards all other members could still step by their deadlines, in the order of the deadlines.
// If the bound is at least members - 1, some step may always run. If no step may run and every
// member waits, the oldest step runs: so no member hangs, and the owner's exact check refuses a
// gradient that is then too old.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "core/base/ids.h"

namespace psd::optim {

// Thread-compatible.
class PaceLedger {
 public:
  explicit PaceLedger(uint64_t bound) : bound_(bound) {}

  // Adds a step of `member`, which is waited for from now on until it leaves. A member's steps run
  // in the order of arrival.
  void Arrive(GlobalId member, GlobalId step);
  // Returns the step that may run now, if there is one. It runs until Finish, and no other step
  // runs meanwhile.
  std::optional<GlobalId> Next();
  // To be called when the running step has ended, or when the next one may follow it. It is counted
  // if it was applied.
  void Finish(bool applied);
  // Takes a step back. Returns false if the step does not wait.
  bool Withdraw(GlobalId step);
  // The member is no longer waited for. Returns its waiting steps.
  std::vector<GlobalId> Leave(GlobalId member);

  size_t members() const { return members_.size(); }
  size_t waiting() const;

 private:
  struct Waiting {
    GlobalId step;
    uint64_t arrival = 0;
  };
  struct Member {
    uint64_t floor = 0;
    std::deque<Waiting> waiting;
  };
  // Whether all other members can still keep their deadlines after one more step of `member`.
  bool Feasible(GlobalId member) const;

  const uint64_t bound_;
  uint64_t clock_ = 0;
  uint64_t arrivals_ = 0;
  std::optional<GlobalId> running_;  // the member whose step runs
  std::map<GlobalId, Member> members_;
};

}  // namespace psd::optim
