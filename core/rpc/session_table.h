#pragma once

// The sessions that peers have on this worker. Decides which incarnation holds which name, and
// which may take a name over. Pure.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/name_fence.h"
#include "core/base/table_shares.h"
#include "core/rpc/callee_session.h"
#include "core/rpc/session_types.h"

namespace psd::rpc {

// The answer to a hello.
struct HelloOutcome {
  enum class Kind {
    kWelcome,
    kRefused,
    kLeaving,  // this worker is about to stop and takes no new sessions
    kStale,    // overtaken by a later hello of the same incarnation; gets no answer
  };
  Kind kind = Kind::kStale;
  uint64_t epoch = 0;
  bool resumed = false;
  // ALREADY_EXISTS: another incarnation holds the name and is alive. UNAVAILABLE: another
  // incarnation holds the name and is silent; try again when its lease has ended. ABORTED: this
  // incarnation has lost its name to another. RESOURCE_EXHAUSTED: there are too many sessions, or
  // too many from this connection or host, or no memory for one more.
  absl::Status status;
};

// Thread-compatible. Owned by WorkerSessions.
//
// Guarantees: Epochs grow and are never reused. A name has at most one session. An incarnation that
// lost its name to another never gets it back, whether its session had ended before or not. A name
// is free when the holder's session has ended, and also when the holder has closed the connection,
// which means that it died. A name is not free while its holder is merely silent. No single host or
// connection can fill the table: once it is more than half full, each has a bounded share. A
// session counts against the share of the origin of its latest hello.
class SessionTable {
 public:
  SessionTable(const SessionOptions& options, PeerInfo self, size_t max_sessions);

  // Decides about a hello. `origin` is where the link comes from: "grpc 10.0.0.5:41234" (see
  // TableShares).
  HelloOutcome OnHello(absl::Time now, LinkId link, const std::string& origin, const Header& hello,
                       Actions& actions);

  // Returns ABORTED if `peer` has lost its name to another incarnation.
  absl::Status CheckFence(const PeerInfo& peer) const;

  // From now on a hello can only resume an existing session; it cannot open a new one.
  void BeginLeaving() { leaving_ = true; }

  // Return null if there is no such session.
  CalleeSession* Find(uint64_t epoch);
  CalleeSession* FindByPeer(const PeerInfo& peer);
  // Returns the peer whose session holds the name, or incarnation 0 if there is none.
  PeerInfo HolderOf(const std::string& name) const;

  // Ends the session: cancels its running calls, then adds a SessionEndedAction.
  void End(uint64_t epoch, Actions& actions);

  // Extends every lease by `grace`, which comes from the stall detector. Then ends sessions whose
  // lease is over and cancels calls whose deadline has passed.
  void Tick(absl::Time now, absl::Duration grace, Actions& actions);
  absl::Time NextWake() const;

  const std::map<uint64_t, std::unique_ptr<CalleeSession>>& sessions() const { return sessions_; }

 private:
  // Returns OK, or the reason why a newcomer may not take the name now.
  absl::Status MayTakeOver(absl::Time now, const CalleeSession& holder) const;
  // Finds the session that the hello resumes, or opens one. A session that held the name ends.
  HelloOutcome Admit(absl::Time now, const std::string& origin, const Header& hello,
                     Actions& actions);
  // Opens a session and returns its epoch. Errors: RESOURCE_EXHAUSTED if there is no memory for it.
  absl::StatusOr<uint64_t> Open(absl::Time now, const std::string& origin, const PeerInfo& peer);

  const SessionOptions& options_;  // the worker's; outlives the table
  const PeerInfo self_;
  bool leaving_ = false;
  uint64_t next_epoch_ = 1;
  std::map<uint64_t, std::unique_ptr<CalleeSession>> sessions_;  // by epoch
  absl::flat_hash_map<std::string, uint64_t> epochs_;            // by name
  TableShares shares_;                                           // of sessions_, by their origins
  NameFence names_;
};

}  // namespace psd::rpc
