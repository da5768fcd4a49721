#pragma once

// Decides whether to look for the next message for a while before sleeping.

#include <sched.h>

#include <algorithm>
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

// Looking for a message costs processor time. Sleeping costs tens of microseconds at each wake-up.
// Looking is worth it for a peer that answers at once, but not for a peer that pauses: after a few
// looks that found nothing, one wait of four begins with a look. Thread-safe.
class SpinPolicy {
 public:
  // If `enabled` is false, looking is never worth it. That holds for a process with one processor,
  // where looking would keep the peer from running.
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

  // To be called when others wait for the processors. A thread that looks keeps them from running,
  // and after a yield it waits behind them.
  void ReportCrowded() { vain_.store(kPatience, std::memory_order_relaxed); }

 private:
  static constexpr int kPatience = 3;
  static constexpr unsigned kTryEvery = 4;

  const bool enabled_;
  // The number of looks without success since the last one that found something.
  std::atomic<int> vain_{0};
  std::atomic<unsigned> rests_{0};
};

// Decides how long a look lasts, by how long the pauses between messages were. A peer that reads
// what it got before it asks for more pauses for longer than a wake-up takes, again and again; then
// a look that lasts as long as its pauses saves each of these wake-ups. Not thread-safe.
class PauseLengths {
 public:
  // A little longer than it takes to wake a thread.
  static constexpr absl::Duration kShortLook = absl::Microseconds(60);
  static constexpr absl::Duration kLongLook = absl::Microseconds(600);

  // Something came after this pause.
  void Report(absl::Duration pause) {
    if (pause <= kShortLook) return;
    trust_ = pause <= kLongLook ? std::min(trust_ + 1, kMostTrust) : std::max(trust_ - kLoss, 0);
  }

  absl::Duration Look() const { return trust_ >= kEnoughTrust ? kLongLook : kShortLook; }

 private:
  static constexpr int kMostTrust = 16;  // so that a few long pauses do not end long looks
  static constexpr int kEnoughTrust = 4;
  // At most one pause of five is longer than the long look.
  static constexpr int kLoss = 4;

  int trust_ = 0;
};

// Does one turn of a look. Gives way to the other hardware thread of this core for a moment, and
// now and then yields the processor. `turn` counts the turns since something was found. Returns
// false if others used the processor for long, so that sleeping is better than looking.
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
