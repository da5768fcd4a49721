#pragma once

// Decides whether to look for the next message for a while before sleeping.

#include <sched.h>

#include <atomic>

#include "absl/time/time.h"
#include "core/base/clock.h"

namespace psd::carrier {

// The number of processors that this process may use.
inline int UsableProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Looking costs processor time; sleeping costs tens of microseconds at each wake-up. A peer that
// answers at once is worth looking for, and a peer that pauses is not: after a few looks in vain,
// only a few waits try again. Thread-safe.
class SpinPolicy {
 public:
  // Without `enabled` nothing is ever worth it: the process has one processor only, and looking
  // would keep the peer from it.
  explicit SpinPolicy(bool enabled) : enabled_(enabled) {}

  // Whether the next wait should begin with a look.
  bool Worthwhile() {
    if (!enabled_) return false;
    if (vain_.load(std::memory_order_relaxed) < kPatience) return true;
    return rests_.fetch_add(1, std::memory_order_relaxed) % kTryEvery == kTryEvery - 1;
  }
  // The result of a look.
  void Report(bool found) {
    if (found) {
      vain_.store(0, std::memory_order_relaxed);
    } else if (vain_.load(std::memory_order_relaxed) < kPatience) {
      vain_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  // Others wait for the processors: who looks keeps them away, and waits behind them after a yield.
  void ReportCrowded() { vain_.store(kPatience, std::memory_order_relaxed); }

 private:
  static constexpr int kPatience = 3;
  static constexpr unsigned kTryEvery = 16;

  const bool enabled_;
  std::atomic<int> vain_{0};  // looks in vain since the last that found something
  std::atomic<unsigned> rests_{0};
};

// One turn of a look: gives the other hardware thread of this core a moment, and now and then the
// processor to whoever waits for it. `turn` counts the turns since something was found. Returns
// false if others took the processor for long, so that sleeping is better than looking.
inline bool SpinTurn(unsigned turn) {
  if (turn % 64 != 63) {
#if defined(__x86_64__)
    for (int i = 0; i < 4; ++i) __builtin_ia32_pause();
#endif
    return true;
  }
  const absl::Time before = Clock::Steady().Now();
  sched_yield();
  return Clock::Steady().Now() - before < absl::Microseconds(20);
}

}  // namespace psd::carrier
