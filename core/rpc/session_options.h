#pragma once

// A worker as its peers know it, and the times and bounds of the sessions between workers.

#include <cstddef>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "core/base/ids.h"

namespace psd {
class MemoryAccount;
}  // namespace psd

namespace psd::rpc {

// A worker in one incarnation, that is, between one start and its end.
struct PeerInfo {
  std::string name;
  Incarnation incarnation = 0;

  friend bool operator==(const PeerInfo& a, const PeerInfo& b) {
    return a.name == b.name && a.incarnation == b.incarnation;
  }
};

// Times and bounds of the session rules.
struct SessionOptions {
  // A session ends if nothing is heard from its holder for this long.
  absl::Duration lease = absl::Seconds(10);
  // A call fails if its peer cannot be reached for this long.
  absl::Duration retry_window = absl::Seconds(30);
  // The shortest and the longest pause between two attempts to connect.
  absl::Duration reconnect_min = absl::Milliseconds(100);
  absl::Duration reconnect_max = absl::Seconds(2);
  // A connection over which nothing comes for this long is taken for dead.
  absl::Duration silence = absl::Seconds(3);
  // The most answers of one session, and their bytes, that are remembered until the caller
  // acknowledges them. A caller that has reached one of these bounds sends no further mutation.
  size_t max_unacknowledged_answers = 1024;
  size_t max_unacknowledged_bytes = size_t{16} << 20;
  // The most reads of one session that run at once. Further ones get RESOURCE_EXHAUSTED.
  size_t max_running_reads = 16'384;
  // The account that is charged for the sessions of peers and for their calls, until these are
  // answered and acknowledged. If null, nothing is charged.
  std::shared_ptr<MemoryAccount> memory;  // shared with the worker
};

}  // namespace psd::rpc
