#pragma once

// Notices that this process itself stood still (suspended, or starved of CPU). Its peers then seem
// silent only because it did not read their messages, so it must not take them for dead.

#include <algorithm>

#include "absl/time/time.h"

namespace psd::rpc {

// Thread-compatible. Pure.
class StallDetector {
 public:
  explicit StallDetector(absl::Duration lease) : lease_(lease) {}

  // The longest time between two calls of OnTick. The caller must keep to it while nothing stalls.
  absl::Duration max_tick() const { return lease_ / 6; }

  // Returns by how much every lease is to be extended: zero, unless the last tick was more than a
  // third of a lease ago; then the time since that tick plus one lease.
  absl::Duration OnTick(absl::Time now) {
    absl::Duration gap = last_ == absl::InfinitePast() ? absl::ZeroDuration() : now - last_;
    last_ = std::max(last_, now);
    return gap > lease_ / 3 ? gap + lease_ : absl::ZeroDuration();
  }

 private:
  const absl::Duration lease_;
  absl::Time last_ = absl::InfinitePast();
};

// Bounds how often in a row a stall of this process extends the patience with a silent peer. If the
// peer is alive, its messages are read soon after a stall. Without the bound, a process that stalls
// again and again would wait for a dead peer for ever. Thread-compatible. Pure.
class Leniency {
 public:
  static constexpr int kMost = 3;

  // Returns false if the bound is reached.
  bool Use() {
    if (used_ == kMost) return false;
    ++used_;
    return true;
  }
  // To be called when a message of the peer has come.
  void Restore() { used_ = 0; }

 private:
  int used_ = 0;
};

}  // namespace psd::rpc
