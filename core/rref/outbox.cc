#include "core/rref/outbox.h"

#include <algorithm>

namespace psd::rref {

void Outbox::Add(const ForkRelease& release) {
  waiting_.push_back({release.owner_incarnation, release.value, release.fork});
}

std::optional<Outbox::Message> Outbox::Next(absl::Time now) {
  if (in_flight_ > 0 || waiting_.empty()) return std::nullopt;
  Message message;
  message.owner_incarnation = waiting_.front().owner_incarnation;
  // All releases of a message are for the same incarnation of the owner; another one refuses them.
  while (in_flight_ < kMaxPerMessage && !waiting_.empty() &&
         waiting_.front().owner_incarnation == message.owner_incarnation) {
    const Waiting& release = waiting_.front();
    message.forks.add_value_incarnations(release.value.incarnation);
    message.forks.add_value_counters(release.value.counter);
    message.forks.add_fork_incarnations(release.fork.incarnation);
    message.forks.add_fork_counters(release.fork.counter);
    waiting_.pop_front();
    ++in_flight_;
  }
  sent_ = now;
  return message;
}

absl::Duration Outbox::Answered(absl::Time now) {
  in_flight_ = 0;
  return std::min((now - sent_) * (1 / kBusyShare - 1), kLongestRest);
}

}  // namespace psd::rref
