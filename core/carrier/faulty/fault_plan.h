#pragma once

// Decides what happens to each message between two named carriers. Pure: a seed and the order of
// the questions determine every answer.

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace psd::carrier {

// What may happen to any message of one direction. Probabilities between 0 and 1. Dropping,
// duplicating and reordering break what a link promises: for tests of what must survive even that.
struct Faults {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;  // later messages may overtake it
  double cut = 0;      // the link ends instead, at both ends
  absl::Duration min_delay = absl::ZeroDuration();
  absl::Duration max_delay = absl::ZeroDuration();
};

enum class FaultAction { kDrop, kDuplicate, kReorder, kCut };

// What happens to one message.
struct Fate {
  bool cut = false;
  int copies = 1;
  bool ordered = true;
  absl::Duration delay = absl::ZeroDuration();
};

// Directions are pairs of carrier names; "*" stands for any. Thread-compatible.
class FaultPlan {
 public:
  explicit FaultPlan(uint64_t seed) : random_(seed) {}

  // Replaces what was set for exactly this pair. A message gets the rule that was set last among
  // those that match.
  void SetFaults(const std::string& from, const std::string& to, const Faults& faults);

  // Once: to the n-th message (from 1) of this direction, counted from the start of the plan.
  // Exact names only.
  void At(const std::string& from, const std::string& to, uint64_t n, FaultAction action);

  // While on, nothing passes this direction, silently.
  void SetBlackHole(const std::string& from, const std::string& to, bool on);
  bool IsBlackHole(const std::string& from, const std::string& to) const;

  // Counts the message and decides.
  Fate Decide(const std::string& from, const std::string& to);

 private:
  using Direction = std::pair<std::string, std::string>;

  Fate Draw(const Faults& faults);
  bool Chance(double probability);

  std::mt19937_64 random_;
  std::vector<std::pair<Direction, Faults>> faults_;
  std::vector<Direction> black_holes_;
  std::map<Direction, uint64_t> counts_;
  std::map<std::pair<Direction, uint64_t>, FaultAction> planned_;
};

// True if the pattern direction (with "*") covers the given one.
bool Covers(const std::pair<std::string, std::string>& pattern, const std::string& from,
            const std::string& to);

}  // namespace psd::carrier
