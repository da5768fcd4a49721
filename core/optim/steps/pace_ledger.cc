#include "core/optim/steps/pace_ledger.h"

#include <algorithm>
#include <utility>

namespace psd::optim {

void PaceLedger::Arrive(GlobalId member, GlobalId step) {
  auto [place, is_new] = members_.try_emplace(member);
  if (is_new) place->second.floor = clock_;
  place->second.waiting.push_back({step, ++arrivals_});
}

bool PaceLedger::Feasible(GlobalId member) const {
  std::vector<uint64_t> floors;
  for (const auto& [id, other] : members_)
    if (id != member) floors.push_back(other.floor);
  std::sort(floors.begin(), floors.end());
  for (size_t i = 0; i < floors.size(); ++i)
    if (clock_ + 1 + i - floors[i] > bound_) return false;
  return true;
}

std::optional<GlobalId> PaceLedger::Next() {
  if (running_.has_value()) return std::nullopt;
  // Sorted, the oldest first.
  std::vector<std::pair<std::pair<uint64_t, uint64_t>, GlobalId>> candidates;
  for (const auto& [id, member] : members_) {
    if (!member.waiting.empty())
      candidates.push_back({{member.floor, member.waiting.front().arrival}, id});
  }
  if (candidates.empty()) return std::nullopt;
  std::sort(candidates.begin(), candidates.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  auto chosen = std::find_if(candidates.begin(), candidates.end(),
                             [this](const auto& each) { return Feasible(each.second); });
  if (chosen == candidates.end()) {
    if (candidates.size() < members_.size()) return std::nullopt;  // a member is still computing
    chosen = candidates.begin();
  }
  running_ = chosen->second;
  std::deque<Waiting>& waiting = members_.at(*running_).waiting;
  const GlobalId step = waiting.front().step;
  waiting.pop_front();
  return step;
}

void PaceLedger::Finish(bool applied) {
  clock_ += applied;
  auto place = members_.find(*running_);
  if (place != members_.end()) place->second.floor = clock_;
  running_.reset();
}

bool PaceLedger::Withdraw(GlobalId step) {
  for (auto& [id, member] : members_) {
    auto found = std::find_if(member.waiting.begin(), member.waiting.end(),
                              [&](const Waiting& each) { return each.step == step; });
    if (found == member.waiting.end()) continue;
    member.waiting.erase(found);
    member.floor = clock_;  // the member starts again
    return true;
  }
  return false;
}

std::vector<GlobalId> PaceLedger::Leave(GlobalId member) {
  std::vector<GlobalId> steps;
  auto place = members_.find(member);
  if (place == members_.end()) return steps;
  for (const Waiting& each : place->second.waiting) steps.push_back(each.step);
  members_.erase(place);
  return steps;
}

size_t PaceLedger::waiting() const {
  size_t count = 0;
  for (const auto& [id, member] : members_) count += member.waiting.size();
  return count;
}

}  // namespace psd::optim
