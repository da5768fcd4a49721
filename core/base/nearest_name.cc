#include "core/base/nearest_name.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace psd {
namespace {

constexpr size_t kComparedCharacters = 64;
constexpr size_t kMaxPairs = 1'000'000;

using Row = std::array<int, kComparedCharacters + 1>;

// Returns the number of edits from `a` to `b` by optimal string alignment, in which a swapped pair
// is not edited again. Requires: both have at most kComparedCharacters bytes.
int EditDistance(absl::string_view a, absl::string_view b) {
  Row before{}, previous{}, current{};
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({replaced, previous[j] + 1, current[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], before[j - 2] + 1);
    }
    before = previous;
    previous = current;
  }
  return previous[b.size()];
}

// Removes the common beginning and end, which need no edit.
void RemoveCommonEnds(absl::string_view& a, absl::string_view& b) {
  const size_t shorter = std::min(a.size(), b.size());
  size_t begin = 0;
  while (begin < shorter && a[begin] == b[begin]) ++begin;
  a.remove_prefix(begin);
  b.remove_prefix(begin);
  size_t end = 0;
  while (end < shorter - begin && a[a.size() - 1 - end] == b[b.size() - 1 - end]) ++end;
  a.remove_suffix(end);
  b.remove_suffix(end);
}

}  // namespace

NearestNameFinder::NearestNameFinder(absl::string_view name)
    : name_(name.substr(0, kComparedCharacters)),
      best_distance_(static_cast<int>((name_.size() + 2) / 3) + 1),
      pairs_left_(kMaxPairs) {}

void NearestNameFinder::Consider(absl::string_view candidate) {
  absl::string_view compared = candidate.substr(0, kComparedCharacters);
  const int length_difference =
      std::abs(static_cast<int>(compared.size()) - static_cast<int>(name_.size()));
  if (length_difference >= best_distance_) return;
  absl::string_view name = name_;
  RemoveCommonEnds(name, compared);
  const size_t pairs = name.size() * compared.size();
  if (pairs > pairs_left_) return;
  pairs_left_ -= pairs;
  const int distance = EditDistance(name, compared);
  if (distance >= best_distance_) return;
  best_distance_ = distance;
  nearest_ = std::string(candidate);
}

std::string DidYouMean(absl::string_view nearest) {
  if (nearest.empty()) return "";
  return absl::StrCat("; did you mean '", nearest, "'?");
}

}  // namespace psd
