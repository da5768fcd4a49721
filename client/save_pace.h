#pragma once

// How much of the time a save may work beside training. Pure.

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

  // `busy_share` of the time is for work while training goes on: above 0, at most 1.
  explicit SavePace(double busy_share) : busy_share_(busy_share) {}

  // An owner said at `now` how many steps its optimizers have accepted so far.
  void Heard(size_t owner, uint64_t steps_accepted, absl::Time now);
  bool Training(absl::Time now) const { return now - last_step_ < kStandstill; }
  // What to wait after having worked for so long.
  absl::Duration PauseAfter(absl::Duration worked, absl::Time now) const;

 private:
  const double busy_share_;
  std::vector<std::optional<uint64_t>> steps_;  // by owner, as heard last
  absl::Time last_step_ = absl::InfinitePast();
};

}  // namespace psd
