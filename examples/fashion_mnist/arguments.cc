#include "examples/fashion_mnist/arguments.h"

#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace psd::examples {

absl::StatusOr<std::vector<OwnerAddress>> ParseOwners(absl::string_view text) {
  std::vector<OwnerAddress> owners;
  std::set<std::string> names;
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(item, absl::MaxSplits('=', 1));
    if (parts.first.empty() || parts.second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--owners: '", item, "' is not name=host:port; example: owner0=127.0.0.1:7071"));
    }
    if (!names.insert(parts.first).second) {
      return absl::InvalidArgumentError(absl::StrCat("--owners: ", parts.first, " is given twice"));
    }
    owners.push_back({parts.first, parts.second});
  }
  return owners;
}

absl::StatusOr<Part> ParsePart(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> numbers =
      absl::StrSplit(text, absl::MaxSplits('/', 1));
  Part part;
  if (!absl::SimpleAtoi(numbers.first, &part.part) ||
      !absl::SimpleAtoi(numbers.second, &part.parts) || part.part < 0 || part.part >= part.parts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--part: '", text, "' is not k/n with 0 <= k < n; example: 0/2 for the first half"));
  }
  return part;
}

std::vector<std::string> NamesOf(const std::vector<OwnerAddress>& owners) {
  std::vector<std::string> names;
  for (const OwnerAddress& owner : owners) names.push_back(owner.name);
  return names;
}

}  // namespace psd::examples
