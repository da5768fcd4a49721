#pragma once

// The order in which messages that found no room try again.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/base/remedy.h"

namespace psd::carrier {

// A message that finds no room joins the line, and messages that came later generally may not try
// before it. So a stream of small messages cannot take all room from a large one. While the first
// message in the line is still patient, it lets much smaller ones pass, because the room that it
// needs may take long to become free. Thread-safe.
class WaitingLine {
 public:
  using Ticket = uint64_t;  // 0: no ticket
  // A message may pass the first in the line if it needs at most 1 / kMuchSmaller of its bytes.
  static constexpr size_t kMuchSmaller = 8;

  // Whether the holder of `ticket` (0: a newcomer), which needs `bytes`, may try to take them now.
  bool MayTry(Ticket ticket, size_t bytes, absl::Time now) const PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (waiting_.empty() || waiting_.begin()->first == ticket) return true;
    const Waiting& first = waiting_.begin()->second;
    return now < first.lets_pass_until && bytes <= first.bytes / kMuchSmaller;
  }
  // Returns a place at the end for a message that needs `bytes`.
  Ticket Join(size_t bytes, absl::Time lets_pass_until) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    waiting_.emplace(++last_, Waiting{bytes, lets_pass_until});
    return last_;
  }
  void Leave(Ticket ticket) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    waiting_.erase(ticket);
  }
  // The number of messages that ever found no room.
  uint64_t joined() const PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return last_;
  }
  size_t size() const PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return waiting_.size();
  }
  // Whether any message other than the holder of `ticket` waits.
  bool OthersWait(Ticket ticket) const PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return waiting_.size() > waiting_.count(ticket);
  }

 private:
  struct Waiting {
    size_t bytes;
    absl::Time lets_pass_until;
  };

  mutable Mutex mutex_;  // leaf
  Ticket last_ PSD_GUARDED_BY(mutex_) = 0;
  std::map<Ticket, Waiting> waiting_ PSD_GUARDED_BY(mutex_);  // the first one has waited longest
};

// The rules for a message that waits for room.
struct WaitingRules {
  std::shared_ptr<WaitingLine> line;  // shared by all links that receive into the same memory
  absl::Duration patience;
};

// Whether a message waits for room.
enum class Waits {
  kYes,
  kNo,     // it tries once, if it is its turn
  kNever,  // it tries once, even if others wait before it
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

  // Calls `take` to take the memory, `bytes` bytes, when it is this message's turn. Returns false
  // if there is no room yet; then ask again soon. When its patience is over, the message tries once
  // more, even if others are before it, and the result of `take` is the outcome. Errors: those of
  // `take`; RESOURCE_EXHAUSTED if the message does not wait, and others do.
  absl::StatusOr<bool> Seek(const WaitingRules& rules, absl::Time now, Waits waits, size_t bytes,
                            absl::FunctionRef<absl::Status()> take) {
    const bool tries_anyway = waits == Waits::kNever || (ticket_ != 0 && now >= until_);
    const bool last = tries_anyway || waits == Waits::kNo;
    const bool tries = tries_anyway || rules.line->MayTry(ticket_, bytes, now);
    if (tries || last) {
      absl::Status taken = tries ? take() : Crowded(rules, bytes);
      if (taken.ok() || last) Leave();
      if (taken.ok()) return true;
      if (last) return taken;
    }
    if (ticket_ == 0) Join(rules, now, bytes);
    return false;
  }
  // Whether other messages wait in the line of `rules`.
  bool OthersWait(const WaitingRules& rules) const { return rules.line->OthersWait(ticket_); }
  // Gives the place up, so that this message holds up no other.
  void Leave() {
    if (ticket_ != 0) line_->Leave(std::exchange(ticket_, 0));
  }

 private:
  static absl::Status Crowded(const WaitingRules& rules, size_t bytes) {
    return WithRemedy(
        absl::ResourceExhaustedError(absl::StrCat(
            "no memory for ", bytes, " bytes more: ", rules.line->size(),
            " messages wait for memory before it, as many as the buffers of the network hold")),
        "try again when calls have ended, send less at once, or raise the budget");
  }
  void Join(const WaitingRules& rules, absl::Time now, size_t bytes) {
    line_ = rules.line;
    ticket_ = line_->Join(bytes, now + rules.patience / 2);
    until_ = now + rules.patience;
  }

  std::shared_ptr<WaitingLine> line_;  // shared as in WaitingRules; null until it waits
  WaitingLine::Ticket ticket_ = 0;
  absl::Time until_;
};

}  // namespace psd::carrier
