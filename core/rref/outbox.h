#pragma once

// The releases that have to be sent to one owner, and when. Pure bookkeeping: no clock, no lock, no
// messages.

#include <cstddef>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/rref/user_ledger.h"
#include "proto/psd/v1/rref.pb.h"

namespace psd::rref {

// One message is under way at a time; releases that are added meanwhile go with the next ones.
// After each message there is a pause in proportion to the time that the message took, so that a
// million releases do not delay the owner's calls. Confined to the code that holds the caller's
// lock.
class Outbox {
 public:
  // The most releases in one message: few enough that handling them does not noticeably delay the
  // owner's other calls.
  static constexpr size_t kMaxPerMessage = 128;
  // The share of the time in which a message is under way while releases are waiting.
  static constexpr double kBusyShare = 0.4;
  // The longest pause after a message. A slow message was mostly waiting on the network or was
  // retried, so it says little about the owner's load.
  static constexpr absl::Duration kLongestRest = absl::Milliseconds(2);

  struct Message {
    Incarnation owner_incarnation = 0;  // the incarnation of the owner that counted all these forks
    v1::ReleaseForks forks;
  };

  void Add(const ForkRelease& release);
  // Returns the message to send now, or nothing if no release is waiting or a message is under way.
  std::optional<Message> Next(absl::Time now);
  // To be called when the message has been answered, or has failed for good. Returns the pause
  // before the next one.
  absl::Duration Answered(absl::Time now);

  bool empty() const { return size() == 0; }
  // The number of releases that have not been answered.
  size_t size() const { return waiting_.size() + in_flight_; }

 private:
  // A waiting release. It is kept small, because there may be a million of them.
  struct Waiting {
    Incarnation owner_incarnation;
    GlobalId value;
    GlobalId fork;
  };
  std::deque<Waiting> waiting_;
  size_t in_flight_ = 0;  // the releases in the message that is under way
  absl::Time sent_ = absl::InfinitePast();
};

}  // namespace psd::rref
