#pragma once

// Decides how long a save pauses so that training keeps most of the owners' time. Pure.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace psd {

// Training goes on from the first step that an owner's optimizers accept until none has been
// accepted for kStandstill. Thread-compatible.
class SavePace {
 public:
  static constexpr absl::Duration kStandstill = absl::Seconds(10);
  static constexpr absl::Duration kLongestPause = absl::Seconds(5);

  // `busy_share` is the share of the time in which the save works while training goes on: above 0,
  // at most 1.
  explicit SavePace(double busy_share) : busy_share_(busy_share) {}

  // Records that an owner reported at `now` how many steps its optimizers have accepted so far.
  void Heard(size_t owner, uint64_t steps_accepted, absl::Time now);
  bool Training(absl::Time now) const { return now - last_step_ < kStandstill; }
  // Returns how long to pause after the save has worked for `worked`: worked * (1 / busy_share - 1)
  // while training goes on, but at most kLongestPause; otherwise zero.
  absl::Duration PauseAfter(absl::Duration worked, absl::Time now) const;

 private:
  const double busy_share_;
  std::vector<std::optional<uint64_t>> steps_;  // by owner, the latest report
  absl::Time last_step_ = absl::InfinitePast();
};

}  // namespace psd
