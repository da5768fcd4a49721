#pragma once

// Sessions of the clients of the unary service: their leases, calls and contexts. Each has an
// rpc::CalleeSession, as a session between workers has, which keeps the calls with the client's
// sequence numbers and acknowledgements. Pure: the time comes in as an argument, and the contexts
// to release are returned.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/table_shares.h"
#include "core/rpc/callee_session.h"

namespace psd::server {

struct GatewayOptions {
  absl::Duration lease = absl::Seconds(10);
  size_t max_sessions = 4096;
  // Bounds for one session.
  size_t max_contexts = 4096;
  size_t max_optimizers = 256;
  size_t max_unacknowledged_answers = 1024;
  size_t max_unacknowledged_bytes = size_t{16} << 20;
  // The budget that is charged for sessions and for what they remember; null if they are not
  // charged.
  std::shared_ptr<MemoryBudget> memory;  // shared with the worker
};

// The answer of a mutating call, kept for its retries.
struct RememberedAnswer {
  absl::Status status;
  std::string reply;  // serialized; empty unless ok
};

// Thread-compatible. Guarantees: A sequence number runs at most once in a session. An answer is
// kept until it is acknowledged. A different request with a known sequence number is refused. Each
// context is returned exactly once for release. No caller is told ABORTED (the session has ended)
// while a call of the session still runs, so after that error nothing more of the session is
// applied.
class GatewaySessions {
 public:
  using SessionId = uint64_t;
  // The lives of optimizers (optimizer_life.h) that a session has joined, by the optimizer's name.
  using Lives = std::map<std::string, GlobalId>;
  using ContextId = uint64_t;

  // The number of unacknowledged calls that a session may always have, even if other sessions use
  // all memory.
  static constexpr size_t kOwnCalls = 4;

  explicit GatewaySessions(const GatewayOptions& options);
  GatewaySessions(const GatewaySessions&) = delete;
  GatewaySessions& operator=(const GatewaySessions&) = delete;

  // `id` is random and was never used before. `peer` is the client's end of its connection,
  // "ipv4:10.0.0.5:41234". Errors: INVALID_ARGUMENT for a bad client name; RESOURCE_EXHAUSTED when
  // there are too many sessions, or too many of that connection or host, or no memory for another
  // one.
  absl::Status Open(SessionId id, const std::string& client, const std::string& peer,
                    absl::Time now);
  // Renews the lease. Errors: ABORTED if there is no such session; UNAVAILABLE while it ends.
  absl::Status Renew(SessionId id, absl::Time now);

  // A session that begins to end.
  struct Ended {
    SessionId id = 0;
    std::string client;
    std::vector<ContextId> contexts;  // to be released
  };
  // Begins to end a session. The caller must stop its running calls; the session is removed when
  // they have finished. Returns nothing if there is no such session, or if it is ending already.
  std::optional<Ended> Close(SessionId id);
  // Ends the sessions whose lease has ended.
  std::vector<Ended> Expire(absl::Time now);
  std::vector<Ended> CloseAll() { return Expire(absl::InfiniteFuture()); }

  struct Start {
    bool run = false;  // false: the call was answered before, with `answer`
    RememberedAnswer answer;
  };
  struct Mutation {
    uint64_t sequence = 0;
    uint64_t acknowledged = 0;
    absl::string_view method;
    // A hash of the method and the request, equal in all repetitions of one request.
    uint64_t fingerprint = 0;
  };
  // Begins a mutating call. If the result says that the call is to run, Finish must follow. Running
  // calls that `acknowledged` covers are given up, unless they have begun to apply. `admit` decides
  // whether a call that is not a repetition may run. Errors: ABORTED (no such session);
  // INVALID_ARGUMENT (sequence 0; acknowledged already; used by another request); UNAVAILABLE (the
  // same call is running: ask again; the session ends); RESOURCE_EXHAUSTED (too many answers are
  // not acknowledged, or there is no memory to remember another one: nothing has changed); those of
  // `admit`.
  absl::StatusOr<Start> Begin(SessionId id, const Mutation& mutation, absl::Time now,
                              absl::FunctionRef<absl::Status()> admit);
  // Returns whether calls have been given up since the last call of this function. Waiting calls
  // must then be told.
  bool TakeGivenUp(SessionId id);
  void Finish(SessionId id, uint64_t sequence, RememberedAnswer answer);
  // Returns the answer to a call of the session that has ended with `status`. ABORTED would let the
  // client start over, so it becomes UNAVAILABLE while another call of an ending session runs.
  absl::Status AnswerOf(SessionId id, const absl::Status& status) const;
  // To be called before a running call takes effect. Returns false if it must not, because its
  // session has ended or its client has given it up.
  bool BeginApply(SessionId id, uint64_t sequence);
  // Returns false once the session ends.
  bool IsOpen(SessionId id) const;
  // The client's name. Empty once the session ends.
  std::string Client(SessionId id) const;

  // Errors: ABORTED (no such session), RESOURCE_EXHAUSTED.
  absl::Status AddContext(SessionId id, ContextId context);
  // Errors: ABORTED (no such session); NOT_FOUND if the session holds no such context.
  absl::Status CheckContext(SessionId id, ContextId context) const;
  // Returns false if the session does not hold the context.
  bool RemoveContext(SessionId id, ContextId context);

  // Records that the session has created or joined a named optimizer in this life
  // (optimizer_life.h). Errors: ABORTED (no such session); RESOURCE_EXHAUSTED (ForgetLives makes
  // room).
  absl::Status JoinLife(SessionId id, const std::string& optimizer, GlobalId life);
  Lives LivesOf(SessionId id) const;
  // Forgets lives that have ended. Lives that the session has joined since then under the same
  // names stay.
  void ForgetLives(SessionId id, const Lives& ended);
  // Returns the life of the optimizer for the session's steps: no id if the session has not joined
  // one; an id that no life has if it may have joined one that was forgotten.
  GlobalId LifeOf(SessionId id, const std::string& optimizer) const;

  struct Info {
    SessionId id = 0;
    std::string client;
    absl::Duration lease_left;
    size_t contexts = 0;
    size_t answers = 0;
  };
  std::vector<Info> List(absl::Time now) const;
  size_t size() const { return sessions_.size(); }

 private:
  struct Session {
    std::unique_ptr<rpc::CalleeSession> calls;  // with the lease
    bool ending = false;                        // to be removed when no call of it runs
    bool given_up = false;                      // see TakeGivenUp
    absl::flat_hash_map<ContextId, MemoryCharge> contexts;
    Lives lives;
    bool forgot_lives = false;
  };
  using SessionMap = absl::flat_hash_map<SessionId, Session>;

  // Charges a new session with its first calls, or one more context of a session. Null if nothing
  // is charged.
  absl::StatusOr<MemoryCharge> ChargeSession() const;
  absl::StatusOr<MemoryCharge> ChargeContext(const Session& session) const;
  // Checks that there is room for a call which was not seen before. Errors: RESOURCE_EXHAUSTED.
  absl::Status CheckRoom(rpc::CalleeSession& calls) const;
  // Requires: no call of the session runs.
  void Remove(SessionMap::iterator session);

  const GatewayOptions options_;
  const rpc::SessionOptions rules_;  // shared by all sessions, which refer to it
  SessionMap sessions_;
  TableShares shares_;  // of sessions_
};

}  // namespace psd::server
