#pragma once

// The order in which messages that found no room may try again.

#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"

namespace psd::carrier {

// A message that finds no room joins the line, and none that came later tries before it. So a
// stream of small messages cannot take all room from under a large one. Thread-safe.
class WaitingLine {
 public:
  using Ticket = uint64_t;  // 0: none

  // Whether the holder of `ticket` (0: a newcomer) has nobody before it.
  bool MayTry(Ticket ticket) const PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return tickets_.empty() || *tickets_.begin() == ticket;
  }
  // A place at the end.
  Ticket Join() PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return *tickets_.insert(++last_).first;
  }
  void Leave(Ticket ticket) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    tickets_.erase(ticket);
  }

 private:
  mutable Mutex mutex_;  // leaf
  Ticket last_ PSD_GUARDED_BY(mutex_) = 0;
  std::set<Ticket> tickets_ PSD_GUARDED_BY(mutex_);
};

// How long a message waits for room, and behind which others.
struct WaitingRules {
  std::shared_ptr<WaitingLine> line;  // shared by all links that receive into the same memory
  absl::Duration patience;
};

// The place of one message in a line. Thread-compatible.
class PlaceInLine {
 public:
  PlaceInLine() = default;
  ~PlaceInLine() { Leave(); }
  PlaceInLine(PlaceInLine&& other) noexcept
      : line_(std::move(other.line_)),
        ticket_(std::exchange(other.ticket_, 0)),
        until_(other.until_) {}
  PlaceInLine& operator=(PlaceInLine&&) = delete;

  // Has `take` take the memory when it is this message's turn. False: there is no room yet; ask
  // again soon. After its patience the message tries once more, whoever is before it: what `take`
  // says then is the outcome. So is the first answer if the message may not wait.
  absl::StatusOr<bool> Seek(const WaitingRules& rules, absl::Time now, bool may_wait,
                            absl::FunctionRef<absl::Status()> take) {
    const bool last = !may_wait || (ticket_ != 0 && now >= until_);
    if (last || rules.line->MayTry(ticket_)) {
      absl::Status taken = take();
      if (taken.ok() || last) Leave();
      if (taken.ok()) return true;
      if (last) return taken;
    }
    if (ticket_ == 0) Join(rules, now);
    return false;
  }

 private:
  void Join(const WaitingRules& rules, absl::Time now) {
    line_ = rules.line;
    ticket_ = line_->Join();
    until_ = now + rules.patience;
  }
  void Leave() {
    if (ticket_ != 0) line_->Leave(std::exchange(ticket_, 0));
  }

  std::shared_ptr<WaitingLine> line_;  // shared as in WaitingRules; null until it waits
  WaitingLine::Ticket ticket_ = 0;
  absl::Time until_;
};

}  // namespace psd::carrier
