#pragma once

#include <atomic>

namespace psd::carrier {

// Lets one thread at a time do work that other threads may request meanwhile. A thread that finds
// it busy leaves a note, and the working thread does the work once more before it leaves. So no
// request is lost and no thread waits. Thread-safe.
class TurnTaking {
 public:
  // Returns true if this thread has the turn; it must then call Leave. Returns false if another
  // thread has the turn; that thread does the work once more after this call.
  bool Enter() {
    int state = kFree;
    while (true) {
      if (state == kFree) {
        if (state_.compare_exchange_weak(state, kBusy, std::memory_order_acq_rel)) return true;
      } else if (state_.compare_exchange_weak(state, kAgain, std::memory_order_acq_rel)) {
        return false;
      }
    }
  }
  // Like Enter, but leaves no note if another thread has the turn. For a thread that soon tries
  // again.
  bool TryEnter() {
    int state = kFree;
    return state_.compare_exchange_strong(state, kBusy, std::memory_order_acq_rel);
  }
  // Ends the turn and returns true, or returns false if the work must be done once more.
  bool Leave() {
    int state = kBusy;
    if (state_.compare_exchange_strong(state, kFree, std::memory_order_acq_rel)) return true;
    state_.exchange(kBusy, std::memory_order_acq_rel);
    return false;
  }

 private:
  static constexpr int kFree = 0;
  static constexpr int kBusy = 1;
  static constexpr int kAgain = 2;
  std::atomic<int> state_{kFree};
};

}  // namespace psd::carrier
