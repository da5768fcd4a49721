#include "core/optim/steps/round_ledger.h"
#include "core/base/remedy.h"

#include "absl/strings/str_cat.h"

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

absl::Status RoundLedger::Offer(GlobalId member, GlobalId step, RoundKind kind) {
  auto place = members_.find(member);
  const bool has_step = place != members_.end() && place->second.has_value();
  if (waiting_ > 0 && kind != kind_ && !has_step) {
    return absl::FailedPreconditionError(absl::StrCat(
        waiting_, " other trainers of this round ", Describe(kind_), ", and this one would ",
        Describe(kind), "; all must step with the same options: compute a new step"));
  }
  if (place == members_.end()) {
    if (members_.size() >= trainers_) {
      return WithRemedy(absl::FailedPreconditionError(absl::StrCat(
                            "all ", trainers_, " places of this synchronous optimizer are taken")),
                        "create it for more trainers, or let one leave");
    }
    if (untaken_ > 0) --untaken_;
    place = members_.emplace(member, std::nullopt).first;
  }
  if (place->second.has_value()) {
    return WithRemedy(
        absl::FailedPreconditionError(absl::StrCat(
            "this trainer's step ", place->second->ToString(), " is already in the round")),
        "wait for it before the next step");
  }
  place->second = step;
  kind_ = kind;
  ++waiting_;
  return absl::OkStatus();
}

bool RoundLedger::Withdraw(GlobalId step) {
  for (auto& [member, its_step] : members_) {
    if (its_step != step) continue;
    its_step.reset();
    --waiting_;
    return true;
  }
  return false;
}

std::optional<GlobalId> RoundLedger::Leave(GlobalId member) {
  auto place = members_.find(member);
  if (place == members_.end()) return std::nullopt;
  const std::optional<GlobalId> step = place->second;
  waiting_ -= step.has_value();
  members_.erase(place);
  if (members_.empty()) untaken_ = trainers_;
  return step;
}

std::vector<GlobalId> RoundLedger::Take() {
  std::vector<GlobalId> steps;
  for (auto& [member, its_step] : members_) {
    steps.push_back(*its_step);
    its_step.reset();
  }
  waiting_ = 0;
  return steps;
}

}  // namespace psd::optim
