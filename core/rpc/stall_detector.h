#pragma once

// Notices that this process itself stood still, so that it does not blame its peers for silence
// that was its own.

#include <algorithm>

#include "absl/time/time.h"

namespace psd::rpc {

// Thread-compatible. Pure.
class StallDetector {
 public:
  explicit StallDetector(absl::Duration lease) : lease_(lease) {}

  // Expected by OnTick at most this far apart while nothing stalls.
  absl::Duration max_tick() const { return lease_ / 6; }

  // How much every lease is to be extended by: nothing, or, when the last tick is more than a third
  // of a lease ago, the stall and one lease more.
  absl::Duration OnTick(absl::Time now) {
    absl::Duration gap = last_ == absl::InfinitePast() ? absl::ZeroDuration() : now - last_;
    last_ = std::max(last_, now);
    return gap > lease_ / 3 ? gap + lease_ : absl::ZeroDuration();
  }

 private:
  const absl::Duration lease_;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace psd::rpc
