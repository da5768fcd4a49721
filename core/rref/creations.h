#pragma once

// The values of this worker that are being made, and the calls that wait for a creation to begin or
// to end. Pure bookkeeping: no clock, no lock, no messages.

#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/base/ids.h"
#include "core/rpc/rpc_agent.h"

namespace psd::rref {

// Confined to the code that holds the caller's lock. The caller answers the calls that are
// returned. rpc bounds the number of waiting calls of a session.
class Creations {
 public:
  using Call = std::shared_ptr<rpc::ServerCall>;  // shared with rpc until it is answered
  using Calls = std::vector<Call>;

  bool UnderWay(GlobalId value) const { return under_way_.contains(value); }
  // Record that a creation begins or ends. Each returns the calls that waited for this.
  Calls Begin(GlobalId value);
  Calls End(GlobalId value);

  // Lets `call` wait for the creation to begin. Returns false, and does nothing, if it is under
  // way.
  bool AwaitBegin(GlobalId value, const Call& call);
  // Lets `call` wait for the creation to end. Returns false, and does nothing, if it is not under
  // way.
  bool AwaitEnd(GlobalId value, const Call& call);
  // Removes a waiting call. Returns false if it did not wait.
  bool Forget(GlobalId value, const Call& call);
  // Removes all waiting calls and returns them.
  Calls TakeAll();

 private:
  using Waiting = absl::flat_hash_map<GlobalId, Calls>;
  static Calls Take(Waiting& from, GlobalId value);
  static bool Remove(Calls& calls, const Call& call);

  Waiting expected_;   // creations that have not begun, with the calls that wait for the begin
  Waiting under_way_;  // creations under way, with the calls that wait for the end, if any
};

}  // namespace psd::rref
