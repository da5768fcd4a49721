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

// How often in a row a stall of this process counts in favour of a peer that is not heard. What the
// peer sent meanwhile is read soon after each stall; a process that stalls all the time would
// otherwise wait for a dead peer for ever. Thread-compatible. Pure.
class Leniency {
 public:
  static constexpr int kMost = 3;

  // False: not once more.
  bool Use() {
    if (used_ == kMost) return false;
    ++used_;
    return true;
  }
  // The peer was heard.
  void Restore() { used_ = 0; }

 private:
  int used_ = 0;
};

}  // namespace psd::rpc
