#pragma once

// Whose sessions live here: names, the incarnations that hold them, and who may take a name over.
// Pure.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/name_fence.h"
#include "core/base/table_shares.h"
#include "core/rpc/callee_session.h"
#include "core/rpc/session_types.h"

namespace psd::rpc {

// What a hello gets.
struct HelloOutcome {
  enum class Kind {
    kWelcome,
    kRefused,
    kLeaving,  // this worker is about to stop and takes no new sessions
    kStale,    // overtaken by a later hello of the same incarnation: no answer
  };
  Kind kind = Kind::kStale;
  uint64_t epoch = 0;
  bool resumed = false;
  // ALREADY_EXISTS: another incarnation holds the name, connected and answering. UNAVAILABLE: it is
  // silent, come again when its lease has ended. ABORTED: this incarnation is fenced.
  // RESOURCE_EXHAUSTED: too many sessions, or too many of that connection or host.
  absl::Status status;
};

// Thread-compatible. Owned by WorkerSessions.
//
// Guarantees: epochs grow and are never reused; a name has at most one session; an incarnation
// that lost its name to another, while its session lived or after that had ended, never gets it
// back. A name is free when its holder's session has ended; and when its holder closed the
// connection (it has died), but not when the holder is merely silent. Nobody fills the table: where
// it is more than half full, hosts and connections have shares of it. A session counts where its
// latest hello came from, until it ends.
class SessionTable {
 public:
  SessionTable(const SessionOptions& options, PeerInfo self, size_t max_sessions);

  // `origin`: where the link comes from, "grpc 10.0.0.5:41234"; see TableShares.
  HelloOutcome OnHello(absl::Time now, LinkId link, const std::string& origin, const Header& hello,
                       Actions& actions);

  // ABORTED if `peer` has lost its name to another incarnation.
  absl::Status CheckFence(const PeerInfo& peer) const;

  // From now on a hello can only resume a session that lives.
  void BeginLeaving() { leaving_ = true; }

  // Null when there is no such live session.
  CalleeSession* Find(uint64_t epoch);
  CalleeSession* FindByPeer(const PeerInfo& peer);
  // Whose session holds the name. Incarnation 0: nobody's.
  PeerInfo HolderOf(const std::string& name) const;

  // Ends the session: cancels what runs, then tells.
  void End(uint64_t epoch, Actions& actions);

  // Ends what is past its lease, cancels what is past its deadline. First gives every lease `grace`
  // more (the answer of the stall detector).
  void Tick(absl::Time now, absl::Duration grace, Actions& actions);
  absl::Time NextWake() const;

  const std::map<uint64_t, std::unique_ptr<CalleeSession>>& sessions() const { return sessions_; }

 private:
  // OK, or why the newcomer may not have the name now.
  absl::Status MayTakeOver(absl::Time now, const CalleeSession& holder) const;
  // Finds the session that the hello resumes, or opens one in place of what held the name.
  HelloOutcome Admit(absl::Time now, const std::string& origin, const Header& hello,
                     Actions& actions);
  // The epoch of a new session.
  uint64_t Open(absl::Time now, const std::string& origin, const PeerInfo& peer);

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
