#include "core/optim/steps/round_ledger.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::optim {

namespace {

const char* Describe(RoundKind kind) {
  switch (kind) {
    case RoundKind::kHere:
      return "step on this owner alone";
    case RoundKind::kNamed:
      return "step without measuring their gradients";
    case RoundKind::kMeasured:
      return "measure their gradients first (they clip by norm or scale losses)";
  }
  return "";
}

}  // namespace

absl::Status RoundLedger::Offer(GlobalId member, GlobalId step, RoundKind kind, uint32_t seats) {
  if (seats == 0 || seats > trainers_) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat(
            "a step for ", seats, " seats of a synchronous optimizer of ", trainers_, " trainers")),
        "give the number of trainers whose gradients it carries");
  }
  const auto place = members_.find(member);
  const bool has_step = place != members_.end() && place->second.step.has_value();
  if (waiting_ > 0 && kind != kind_ && !has_step) {
    return absl::FailedPreconditionError(absl::StrCat(
        waiting_, " other trainers of this round ", Describe(kind_), ", and this one would ",
        Describe(kind), "; all must step with the same options: compute a new step"));
  }
  if (has_step) {
    return WithRemedy(
        absl::FailedPreconditionError(absl::StrCat(
            "this trainer's step ", place->second.step->ToString(), " is already in the round")),
        "wait for it before the next step");
  }
  const uint32_t own = place == members_.end() ? 0 : place->second.seats;
  const uint32_t others = taken_ - own;
  if (seats > trainers_ - others) {
    ErrorDetail detail;
    detail.object = std::string(kSeats);
    return WithRemedy(
        WithDetail(absl::ResourceExhaustedError(absl::StrCat(
                       "a step for ", seats, " of the ", trainers_,
                       " seats of this synchronous optimizer, of which other trainers have ",
                       others, " and ", trainers_ - others, " are left")),
                   detail),
        "let a trainer leave, or create the optimizer for more; the seats of a trainer that died "
        "are left when its session has ended");
  }
  const uint32_t more = seats > own ? seats - own : 0;
  const uint32_t empty = trainers_ - taken_ - untaken_;
  // A new member is one of those that were still starting. A known one takes empty seats first.
  untaken_ -= own == 0 ? std::min(untaken_, more) : more - std::min(more, empty);
  taken_ = others + seats;
  members_[member] = {step, seats};
  kind_ = kind;
  ++waiting_;
  joined_.merge(newly_joined_);
  newly_joined_.clear();
  return absl::OkStatus();
}

bool RoundLedger::Withdraw(GlobalId step) {
  for (auto& [id, member] : members_) {
    if (member.step != step) continue;
    member.step.reset();
    --waiting_;
    return true;
  }
  return false;
}

std::optional<GlobalId> RoundLedger::Leave(GlobalId member) {
  joined_.erase(member);
  newly_joined_.erase(member);
  return GiveSeats(member);
}

std::optional<GlobalId> RoundLedger::GiveSeats(GlobalId member) {
  std::optional<GlobalId> step;
  if (const auto place = members_.find(member); place != members_.end()) {
    step = place->second.step;
    waiting_ -= step.has_value();
    taken_ -= place->second.seats;
    members_.erase(place);
  }
  if (members_.empty() && joined_.empty()) untaken_ = trainers_;
  return step;
}

std::vector<GlobalId> RoundLedger::Take() {
  std::vector<GlobalId> steps;
  for (auto& [id, member] : members_) {
    steps.push_back(*member.step);
    member.step.reset();
  }
  waiting_ = 0;
  return steps;
}

}  // namespace psd::optim
