#pragma once

// Sessions of the unary service: leases, remembered answers, contexts. Pure: the time is an
// argument, and what is to be released is returned.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/table_shares.h"

namespace psd::server {

struct ClientSessionOptions {
  absl::Duration lease = absl::Seconds(10);
  size_t max_sessions = 4096;
  // Of one session.
  size_t max_contexts = 4096;
  size_t max_unacknowledged_answers = 1024;
  size_t max_unacknowledged_bytes = size_t{16} << 20;
};

// What a mutating call was answered with; kept for its retries.
struct RememberedAnswer {
  absl::Status status;
  std::string reply;  // serialized; empty unless ok
};

// Thread-compatible. Guarantees: a sequence number runs at most once in the life of a session; an
// answer is kept until it is acknowledged; contexts are returned exactly once for release.
class ClientSessions {
 public:
  using SessionId = uint64_t;
  using ContextId = uint64_t;

  explicit ClientSessions(const ClientSessionOptions& options)
      : options_(options), shares_(options.max_sessions) {}

  // `id`: random, never used before. `peer`: the client's end of its connection,
  // "ipv4:10.0.0.5:41234". Errors: INVALID_ARGUMENT for a bad client name; RESOURCE_EXHAUSTED when
  // there are too many, or too many of that connection or host.
  absl::Status Open(SessionId id, const std::string& client, const std::string& peer,
                    absl::Time now);
  // Errors: ABORTED when there is no such session (any more).
  absl::Status Renew(SessionId id, absl::Time now);
  // Ends it; the contexts it held. None if there is no such session.
  std::vector<ContextId> Close(SessionId id);

  struct Expired {
    SessionId id = 0;
    std::string client;
    std::vector<ContextId> contexts;
  };
  // Ends the sessions whose lease has ended.
  std::vector<Expired> Expire(absl::Time now);

  struct Start {
    bool run = false;  // false: `answer` is what it was answered before
    RememberedAnswer answer;
  };
  // A mutating call has come. If it is to run, Finish must follow.
  // Errors: ABORTED (no such session); INVALID_ARGUMENT (sequence 0; acknowledged already; used by
  // another method); UNAVAILABLE (the same call is running: ask again); RESOURCE_EXHAUSTED (too
  // many answers are not acknowledged).
  absl::StatusOr<Start> Begin(SessionId id, uint64_t sequence, uint64_t acknowledged,
                              absl::string_view method, absl::Time now);
  // Does nothing if the session has ended meanwhile.
  void Finish(SessionId id, uint64_t sequence, RememberedAnswer answer);

  // Errors: ABORTED (no such session), RESOURCE_EXHAUSTED.
  absl::Status AddContext(SessionId id, ContextId context);
  // Errors: ABORTED; NOT_FOUND when the session holds no such context.
  absl::Status CheckContext(SessionId id, ContextId context) const;
  // False if it held none.
  bool RemoveContext(SessionId id, ContextId context);

  struct Info {
    SessionId id = 0;
    std::string client;
    absl::Duration lease_left;
    size_t contexts = 0;
    size_t answers = 0;
  };
  std::vector<Info> List(absl::Time now) const;
  size_t size() const { return sessions_.size(); }
  bool Contains(SessionId id) const { return sessions_.contains(id); }

 private:
  struct Call {
    std::string method;
    bool running = true;
    RememberedAnswer answer;
  };
  struct Session {
    std::string client;
    std::string peer;
    absl::Time lease_end;
    uint64_t acknowledged = 0;
    std::map<uint64_t, Call> calls;  // by sequence, those not acknowledged
    size_t answer_bytes = 0;
    absl::flat_hash_set<ContextId> contexts;
  };
  void Acknowledge(Session& session, uint64_t up_to);

  const ClientSessionOptions options_;
  absl::flat_hash_map<SessionId, Session> sessions_;
  TableShares shares_;  // of sessions_
};

}  // namespace psd::server
