#include "core/optim/steps/round_board.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"

namespace psd::optim {

absl::Status RoundBoard::Offer(GlobalId step, const RoundPlace& place, bool measures,
                               uint32_t seats) {
  const std::vector<GlobalId>& members = place.word.members;
  if (!std::is_sorted(members.begin(), members.end()) || members.size() > trainers_ ||
      !std::binary_search(members.begin(), members.end(), place.turn)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "turn ", place.turn.ToString(), " in round ", place.word.number, " of ", members.size(),
        " members, which are not at most ", trainers_, " turns in order with this one among them"));
  }
  const auto known = rounds_.find(members.front());
  uint64_t all_seats = seats;
  if (known != rounds_.end()) {
    const Round& round = known->second;
    if (!(round.word == place.word)) {
      return absl::InvalidArgumentError(
          absl::StrCat("round ", place.word.number, " has other members than its other steps say"));
    }
    if (round.measures != measures || round.steps.count(place.turn) > 0) {
      return WithRemedy(absl::FailedPreconditionError(
                            absl::StrCat("the other members of round ", place.word.number,
                                         " are in another phase of it than this step")),
                        "compute a new step");
    }
    for (const auto& [turn, other] : round.steps) all_seats += other.seats;
  }
  if (seats == 0 || all_seats > trainers_) {
    return WithRemedy(absl::InvalidArgumentError(
                          absl::StrCat("a step for ", seats, " seats in round ", place.word.number,
                                       ", whose steps would be for ", all_seats,
                                       " seats of an optimizer of ", trainers_, " trainers")),
                      "step for as many seats as its turn was taken for");
  }
  Round& round = rounds_[members.front()];
  round.word = place.word;
  round.measures = measures;
  round.steps.emplace(place.turn, Waiting{step, seats});
  return absl::OkStatus();
}

bool RoundBoard::Withdraw(GlobalId step) {
  for (auto round = rounds_.begin(); round != rounds_.end(); ++round) {
    auto& steps = round->second.steps;
    const auto found = std::find_if(steps.begin(), steps.end(),
                                    [step](const auto& each) { return each.second.step == step; });
    if (found == steps.end()) continue;
    steps.erase(found);
    if (steps.empty()) rounds_.erase(round);
    return true;
  }
  return false;
}

std::optional<RoundBoard::Complete> RoundBoard::Take(
    absl::FunctionRef<bool(GlobalId turn)> expects) {
  for (auto round = rounds_.begin(); round != rounds_.end(); ++round) {
    const std::vector<GlobalId>& members = round->second.word.members;
    const std::map<GlobalId, Waiting>& steps = round->second.steps;
    const bool waits = std::any_of(members.begin(), members.end(), [&](GlobalId turn) {
      return steps.count(turn) == 0 && expects(turn);
    });
    if (waits) continue;
    Complete complete;
    for (const GlobalId& turn : members) {
      const auto step = steps.find(turn);
      if (step != steps.end()) {
        complete.steps.push_back(step->second.step);
      } else {
        complete.missing.push_back(turn);
      }
    }
    rounds_.erase(round);
    return complete;
  }
  return std::nullopt;
}

size_t RoundBoard::waiting() const {
  size_t count = 0;
  for (const auto& [first, round] : rounds_) count += round.steps.size();
  return count;
}

}  // namespace psd::optim
