#pragma once

// Decides what happens to each message between two named carriers. Pure: the seed and the order of
// the calls determine every decision.

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace psd::carrier {

// The faults of one direction, as probabilities between 0 and 1 for each message. Dropping,
// duplicating and reordering break the guarantees of a link; they are for tests of code that must
// survive even these.
struct Faults {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;  // later messages may overtake the message
  double cut = 0;      // the message is lost, and the link ends at both ends
  absl::Duration min_delay = absl::ZeroDuration();
  absl::Duration max_delay = absl::ZeroDuration();
};

enum class FaultAction { kDrop, kDuplicate, kReorder, kCut };

// The decision about one message.
struct Fate {
  bool cut = false;
  int copies = 1;
  bool ordered = true;
  absl::Duration delay = absl::ZeroDuration();
};

// A direction is a pair of carrier names; "*" matches any name. Thread-compatible.
class FaultPlan {
 public:
  explicit FaultPlan(uint64_t seed) : random_(seed) {}

  // Sets the faults of a direction, replacing earlier ones of exactly this pair. If several pairs
  // match a message, the one that was set last counts.
  void SetFaults(const std::string& from, const std::string& to, const Faults& faults);

  // Plans one fault for the n-th message of this direction, counted from 1 since the plan was
  // created. "*" is not allowed here.
  void At(const std::string& from, const std::string& to, uint64_t n, FaultAction action);

  // While on, all messages of this direction are lost, and neither end is told.
  void SetBlackHole(const std::string& from, const std::string& to, bool on);
  bool IsBlackHole(const std::string& from, const std::string& to) const;

  // Counts the message and decides its fate.
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

// Whether a direction that may contain "*" matches the given one.
bool Covers(const std::pair<std::string, std::string>& pattern, const std::string& from,
            const std::string& to);

}  // namespace psd::carrier
