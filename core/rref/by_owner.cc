#include "core/rref/by_owner.h"

#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace psd::rref {

absl::StatusOr<std::vector<OwnerPart>> PartsByOwner(const std::vector<RRef>& rrefs) {
  std::vector<OwnerPart> parts;
  std::map<std::string, size_t> numbers;  // indices in `parts`
  // The part of the previous RRef, which mostly also has the next one.
  OwnerPart* part = nullptr;
  for (size_t i = 0; i < rrefs.size(); ++i) {
    if (!rrefs[i].valid()) {
      return absl::InvalidArgumentError(
          absl::StrCat("RRef ", i, " of ", rrefs.size(), " refers to nothing"));
    }
    const std::string& owner = rrefs[i].owner();
    if (part == nullptr || part->owner != owner) {
      const auto [it, added] = numbers.try_emplace(owner, parts.size());
      if (added) parts.push_back({owner, {}});
      part = &parts[it->second];
      part->places.reserve(rrefs.size());
    }
    part->places.push_back(i);
  }
  return parts;
}

}  // namespace psd::rref
