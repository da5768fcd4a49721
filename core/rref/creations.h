#pragma once

// Which values of this worker are being made, and which calls wait for that to begin or to end.
// Pure bookkeeping, no clock, no lock, no message.

#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/base/ids.h"
#include "core/rpc/rpc_agent.h"

namespace psd::rref {

// Confined to whoever locks it, who answers the calls that it gives back. rpc bounds the calls that
// may wait at once, for each session.
class Creations {
 public:
  using Call = std::shared_ptr<rpc::ServerCall>;  // shared with rpc until it is answered
  using Calls = std::vector<Call>;

  bool UnderWay(GlobalId value) const { return under_way_.contains(value); }
  // Both return who waited for that.
  Calls Begin(GlobalId value);
  Calls End(GlobalId value);

  // False if it has begun: there is nothing to wait for.
  bool AwaitBegin(GlobalId value, const Call& call);
  // False if it is not under way.
  bool AwaitEnd(GlobalId value, const Call& call);
  // The call waits no longer. False if it did not.
  bool Forget(GlobalId value, const Call& call);
  // All that wait.
  Calls TakeAll();

 private:
  using Waiting = absl::flat_hash_map<GlobalId, Calls>;
  static Calls Take(Waiting& from, GlobalId value);
  static bool Remove(Calls& calls, const Call& call);

  Waiting expected_;   // not begun, and somebody waits for it
  Waiting under_way_;  // begun, with or without anybody who waits for the end
};

}  // namespace psd::rref
