#include "client/save_pace.h"

#include <algorithm>
#include <utility>

namespace psd {

void SavePace::Heard(size_t owner, uint64_t steps_accepted, absl::Time now) {
  if (owner >= steps_.size()) steps_.resize(owner + 1);
  const std::optional<uint64_t> before = std::exchange(steps_[owner], steps_accepted);
  if (before.has_value() && *before != steps_accepted) last_step_ = now;
}

absl::Duration SavePace::PauseAfter(absl::Duration worked, absl::Time now) const {
  if (!Training(now)) return absl::ZeroDuration();
  return std::min(worked * (1 / busy_share_ - 1), kLongestPause);
}

}  // namespace psd
