#include "core/checkpoint/placement.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::checkpoint {
namespace {

// A pair of saved owner and name.
using Key = std::pair<std::string, std::string>;

absl::Status CheckOptions(const CheckpointIndex& index, const std::vector<std::string>& owners,
                          const PlacementOptions& options) {
  if (owners.empty()) return absl::InvalidArgumentError("there are no owners to load into");
  std::set<std::string> saved;
  for (const SavedValue& value : index.values) saved.insert(value.owner);
  for (const auto& [from, to] : options.owners) {
    if (saved.count(from) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", from, "' is no owner of this save; it has ", absl::StrJoin(saved, ", ")));
    }
    if (std::find(owners.begin(), owners.end(), to) == owners.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", to, "' is no owner of this job; it has ", absl::StrJoin(owners, ", ")));
    }
  }
  return absl::OkStatus();
}

// Returns the size of every value in bytes, with the state that optimizers keep for it. Each array
// of state is assumed to be as large as the value.
std::vector<uint64_t> Weights(const CheckpointIndex& index) {
  std::map<Key, uint64_t> arrays;
  for (const SavedOptimizer& optimizer : index.optimizers)
    for (const SavedState& state : optimizer.parameters)
      arrays[{state.owner, state.parameter}] += state.slots.size();
  std::vector<uint64_t> weights;
  for (const SavedValue& value : index.values) {
    const auto bytes = static_cast<uint64_t>(value.shape.NumElements()) * ItemSize(value.dtype);
    auto found = arrays.find({value.owner, value.name});
    weights.push_back(bytes * (1 + (found == arrays.end() ? 0 : found->second)));
  }
  return weights;
}

// Returns the owner that the options name for `value`, or "" if the value is to be spread.
std::string NamedOwner(const SavedValue& value, const std::vector<std::string>& owners,
                       const PlacementOptions& options) {
  auto mapped = options.owners.find(value.owner);
  if (mapped != options.owners.end()) return mapped->second;
  const bool there = std::find(owners.begin(), owners.end(), value.owner) != owners.end();
  return there && !options.spread ? value.owner : "";
}

absl::Status CheckMeetings(const CheckpointIndex& index, const Placement& placement) {
  std::map<Key, std::string> taken;  // (owner now, name) -> saved owner
  for (size_t i = 0; i < index.values.size(); ++i) {
    const SavedValue& value = index.values[i];
    auto [there, fresh] = taken.emplace(Key(placement.values[i], value.name), value.owner);
    if (fresh) continue;
    return WithRemedy(absl::AlreadyExistsError(absl::StrCat(
                          "'", value.name, "' of ", there->second, " and that of ", value.owner,
                          " would meet on ", placement.values[i], ", where names are unique")),
                      "send them to different owners");
  }
  std::map<Key, size_t> optimizers;  // (owner now, name) -> index
  for (size_t i = 0; i < index.optimizers.size(); ++i) {
    const std::string& name = index.optimizers[i].name;
    for (const std::string& owner : placement.optimizers[i]) {
      if (taken.count({owner, name}) == 0 &&
          optimizers.emplace(Key(owner, name), i).first->second == i)
        continue;
      return WithRemedy(absl::AlreadyExistsError(absl::StrCat(
                            "optimizer '", name, "' and something else of that name would meet on ",
                            owner, ", where names are unique")),
                        "send their parameters to different owners");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Placement> Place(const CheckpointIndex& index,
                                const std::vector<std::string>& owners,
                                const PlacementOptions& options) {
  PSD_RETURN_IF_ERROR(CheckOptions(index, owners, options));
  const std::vector<uint64_t> weights = Weights(index);
  Placement placement;
  placement.values.resize(index.values.size());
  std::map<std::string, uint64_t> load;
  for (const std::string& owner : owners) load[owner] = 0;
  std::vector<size_t> homeless;
  for (size_t i = 0; i < index.values.size(); ++i) {
    placement.values[i] = NamedOwner(index.values[i], owners, options);
    if (placement.values[i].empty()) {
      homeless.push_back(i);
    } else {
      load[placement.values[i]] += weights[i];
    }
  }
  std::stable_sort(homeless.begin(), homeless.end(),
                   [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  for (size_t i : homeless) {
    auto least = std::min_element(load.begin(), load.end(),
                                  [](const auto& a, const auto& b) { return a.second < b.second; });
    placement.values[i] = least->first;
    least->second += weights[i];
  }
  std::map<Key, std::string> places;
  for (size_t i = 0; i < index.values.size(); ++i)
    places[{index.values[i].owner, index.values[i].name}] = placement.values[i];
  for (const SavedOptimizer& optimizer : index.optimizers) {
    std::vector<std::string>& homes = placement.optimizers.emplace_back();
    for (const SavedState& state : optimizer.parameters)
      homes.push_back(places[{state.owner, state.parameter}]);
  }
  PSD_RETURN_IF_ERROR(CheckMeetings(index, placement));
  return placement;
}

}  // namespace psd::checkpoint
