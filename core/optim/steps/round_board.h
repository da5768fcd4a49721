#pragma once

// The rounds that the lead of a synchronous optimizer has named, and the steps that wait in them on
// one owner until all members have come. Pure.
//
// A round is identified by its first member's turn, because a turn is in one round only. The same
// round may be passed twice: all members measure, then all step. Nothing is kept between the two
// phases, because the lead's word comes with every request.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "core/base/ids.h"
#include "core/optim/steps/step_request.h"

namespace psd::optim {

// Thread-compatible.
class RoundBoard {
 public:
  // Requires: trainers >= 1.
  explicit RoundBoard(uint32_t trainers) : trainers_(trainers) {}

  // Adds a step for `seats` seats (RoundLedger) that waits at `place`. Errors: INVALID_ARGUMENT if
  // the word does not contain the step's turn, names more members than there are trainers, or
  // differs from the word of the round's other steps, and if the round's steps are then for more
  // seats than there are; FAILED_PRECONDITION if the others are in the other phase, or the turn
  // already has a step here.
  absl::Status Offer(GlobalId step, const RoundPlace& place, bool measures, uint32_t seats = 1);
  // Takes a step back. Returns false if it does not wait here.
  bool Withdraw(GlobalId step);

  struct Complete {
    std::vector<GlobalId> steps;
    std::vector<GlobalId> missing;  // the turns of members that the round did not wait for
  };
  // Removes and returns a round that waits for no member, if there is one. A member is waited for
  // if `expects` returns true for its turn.
  std::optional<Complete> Take(absl::FunctionRef<bool(GlobalId turn)> expects);

  size_t waiting() const;  // steps in all rounds

 private:
  struct Waiting {
    GlobalId step;
    uint32_t seats = 1;
  };
  struct Round {
    RoundWord word;
    bool measures = false;
    std::map<GlobalId, Waiting> steps;  // by their turns
  };

  const uint32_t trainers_;
  std::map<GlobalId, Round> rounds_;  // by the first member's turn; no round is without a step
};

}  // namespace psd::optim
