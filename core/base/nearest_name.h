#pragma once

// Finds the known name that a misspelt one probably means, for "did you mean" in error messages.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace psd {

// Collects the candidate nearest to a name by edit distance (insertions, deletions, replacements
// and swaps of neighbours each count one). At most a third of the name's characters, rounded up,
// may differ. The cost is bounded to about a millisecond: names are compared in their first 64
// characters, and once a million pairs of characters have been compared, further candidates are
// ignored. Thread-compatible.
class NearestNameFinder {
 public:
  explicit NearestNameFinder(absl::string_view name);

  void Consider(absl::string_view candidate);

  // The nearest candidate so far; the first of several that are equally near; empty if none is near
  // enough.
  const std::string& nearest() const { return nearest_; }

 private:
  const std::string name_;
  std::string nearest_;
  int best_distance_;  // a candidate must be below it
  size_t pairs_left_;  // of characters, that may still be compared
};

// Returns the nearest of `candidates`, a range of strings; empty if none is near enough.
template <typename Candidates>
std::string NearestName(absl::string_view name, const Candidates& candidates) {
  NearestNameFinder finder(name);
  for (const auto& candidate : candidates) finder.Consider(candidate);
  return finder.nearest();
}

// Returns "; did you mean 'lr'?", the end of an error message, or "" if `nearest` is empty.
std::string DidYouMean(absl::string_view nearest);

}  // namespace psd
