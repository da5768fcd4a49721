#include "core/carrier/faulty/fault_plan.h"

#include <algorithm>

namespace psd::carrier {
namespace {

// The most by which a reordered message is delayed, unless the delays of its direction are longer.
constexpr absl::Duration kReorderWindow = absl::Milliseconds(1);

void Apply(FaultAction action, Fate* fate) {
  switch (action) {
    case FaultAction::kDrop:
      fate->copies = 0;
      return;
    case FaultAction::kDuplicate:
      fate->copies = 2;
      return;
    case FaultAction::kReorder:
      fate->ordered = false;
      fate->delay += kReorderWindow;
      return;
    case FaultAction::kCut:
      fate->cut = true;
      return;
  }
}

}  // namespace

bool Covers(const std::pair<std::string, std::string>& pattern, const std::string& from,
            const std::string& to) {
  return (pattern.first == "*" || pattern.first == from) &&
         (pattern.second == "*" || pattern.second == to);
}

void FaultPlan::SetFaults(const std::string& from, const std::string& to, const Faults& faults) {
  Direction direction{from, to};
  faults_.erase(std::remove_if(faults_.begin(), faults_.end(),
                               [&](const auto& rule) { return rule.first == direction; }),
                faults_.end());
  faults_.emplace_back(direction, faults);
}

void FaultPlan::At(const std::string& from, const std::string& to, uint64_t n, FaultAction action) {
  planned_[{{from, to}, n}] = action;
}

void FaultPlan::SetBlackHole(const std::string& from, const std::string& to, bool on) {
  Direction direction{from, to};
  black_holes_.erase(std::remove(black_holes_.begin(), black_holes_.end(), direction),
                     black_holes_.end());
  if (on) black_holes_.push_back(direction);
}

bool FaultPlan::IsBlackHole(const std::string& from, const std::string& to) const {
  return std::any_of(black_holes_.begin(), black_holes_.end(),
                     [&](const Direction& pattern) { return Covers(pattern, from, to); });
}

Fate FaultPlan::Decide(const std::string& from, const std::string& to) {
  Direction direction{from, to};
  uint64_t number = ++counts_[direction];
  Fate fate;
  for (auto rule = faults_.rbegin(); rule != faults_.rend(); ++rule) {
    if (!Covers(rule->first, from, to)) continue;
    fate = Draw(rule->second);
    break;
  }
  auto planned = planned_.find({direction, number});
  if (planned != planned_.end()) {
    Apply(planned->second, &fate);
    planned_.erase(planned);
  }
  if (IsBlackHole(from, to)) {
    fate.copies = 0;
    fate.cut = false;
  }
  return fate;
}

Fate FaultPlan::Draw(const Faults& faults) {
  Fate fate;
  double share = std::uniform_real_distribution<double>()(random_);
  fate.delay = faults.min_delay + share * (faults.max_delay - faults.min_delay);
  if (Chance(faults.duplicate)) Apply(FaultAction::kDuplicate, &fate);
  if (Chance(faults.reorder)) {
    fate.ordered = false;
    fate.delay += std::uniform_real_distribution<double>()(random_) * kReorderWindow;
  }
  if (Chance(faults.drop)) Apply(FaultAction::kDrop, &fate);
  if (Chance(faults.cut)) Apply(FaultAction::kCut, &fate);
  return fate;
}

bool FaultPlan::Chance(double probability) {
  // A number is always drawn, so that changing one probability does not change other decisions.
  return std::uniform_real_distribution<double>()(random_) < probability;
}

}  // namespace psd::carrier
