#pragma once

// The releases that one owner has to be told of, and when. Pure bookkeeping, no clock, no lock, no
// message.

#include <cstddef>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/rref/user_ledger.h"
#include "proto/psd/v1/rref.pb.h"

namespace psd::rref {

// One message is under way at a time; what comes meanwhile goes with the next ones. Between two
// messages the owner rests in proportion to what the first one took, so that a million releases do
// not stand in the way of its calls. Confined to whoever locks it.
class Outbox {
 public:
  // Few enough that the owner is done with them before another call notices.
  static constexpr size_t kMaxPerMessage = 128;
  // Of the time in which releases wait.
  static constexpr double kBusyShare = 0.4;
  // A message that took long was under way for long, or sent again; it did not work all the time.
  static constexpr absl::Duration kLongestRest = absl::Milliseconds(2);

  struct Message {
    Incarnation owner_incarnation = 0;  // all forks were counted by this one
    v1::ReleaseForks forks;
  };

  void Add(const ForkRelease& release);
  // The message to send now, if there is something to say and none is under way.
  std::optional<Message> Next(absl::Time now);
  // The message has been answered, or failed for good. How long the owner rests before the next.
  absl::Duration Answered(absl::Time now);

  bool empty() const { return size() == 0; }
  // Releases that are not answered.
  size_t size() const { return waiting_.size() + in_flight_; }

 private:
  // What a release needs to wait: a fraction of what a held fork does.
  struct Waiting {
    Incarnation owner_incarnation;
    GlobalId value;
    GlobalId fork;
  };
  std::deque<Waiting> waiting_;
  size_t in_flight_ = 0;  // releases in the message that is not answered
  absl::Time sent_ = absl::InfinitePast();
};

}  // namespace psd::rref
