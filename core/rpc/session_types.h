#pragma once

// The types that the session machines and the agent share: calls, and the effects that the machines
// ask for.
//
// The machines (caller_session, callee_session, session_table, worker_sessions) are pure: they have
// no clock, thread or socket. Time comes in as an argument, effects go out as Actions, and payloads
// are Opaque.

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/rpc/header.h"
#include "core/rpc/session_options.h"  // IWYU pragma: export

namespace psd::rpc {

// The kind of a method. It decides whether calls are retried freely and answers are remembered.
enum class MethodKind {
  kRead,      // changes nothing; may run several times, its answers are not remembered
  kMutation,  // applied at most once per call; has a sequence number, its answer is remembered
};

// Identifies a link. Chosen by the driver of the machines; never zero, never reused.
using LinkId = uint64_t;
// Identifies a call of one caller. Never zero, never reused by one incarnation.
using CallId = uint64_t;

// An object of the driver, which the machines keep and never look into: a call in flight, a running
// function, a remembered answer.
class Opaque {
 public:
  virtual ~Opaque() = default;
};

// One call as the caller asks for it.
struct CallSpec {
  MethodKind kind = MethodKind::kMutation;
  // If true, nothing is sent, and the call completes with OK once the session is open.
  bool connect_only = false;
  bool wait_for_ready = false;
  // If true, the call fails when the session on the peer ends, even if it is a read.
  bool session_bound = false;
  absl::Time deadline = absl::InfiniteFuture();
  Incarnation only_incarnation = 0;
  uint64_t only_epoch = 0;       // if not 0, only the session with this epoch may run the call
  std::shared_ptr<Opaque> body;  // shared by the machine and its driver until the call is done
};

// The part of a request that the session rules read.
struct RequestMeta {
  CallId call_id = 0;
  uint64_t sequence = 0;  // 0 for a read
  uint64_t epoch = 0;
  Incarnation callee_incarnation = 0;
  absl::Time deadline = absl::InfiniteFuture();
  Ack ack;
  uint32_t attempt = 0;  // of a read: how often the caller has sent it; 0 for a mutation
  // At the callee: a hash of what the mutation asks for, equal in all copies of one request. 0 if
  // it is not known.
  uint64_t fingerprint = 0;
};

// The part of a reply that the session rules read.
struct ReplyMeta {
  CallId call_id = 0;
  uint64_t epoch = 0;  // epoch of the session in which the answer was given
  // In the answer to a read that gives references: the number of the attempt that it answers.
  // In the answer to a mutation: 1 if it is an error that replaces an answer which gave references
  // and could not be kept. Otherwise 0.
  uint32_t attempt = 0;
};

// Where an answer is to be sent.
struct AnswerRoute {
  LinkId link = 0;       // 0: there is no link now
  uint32_t attempt = 0;  // for ReplyMeta
};

// ---- Effects. The driver performs them in order, without holding a lock.

struct DialAction {
  std::string peer;
  std::string address;
};
// Closes a link that no session uses any more. A later OnLinkClosed for this link is ignored.
struct CloseLinkAction {
  LinkId link = 0;
  absl::Status reason;
};
struct SendControlAction {
  LinkId link = 0;
  Header header;
};
struct SendRequestAction {
  LinkId link = 0;
  RequestMeta meta;
  std::shared_ptr<Opaque> body;
};
struct SendAnswerAction {
  LinkId link = 0;
  CallId call_id = 0;
  std::shared_ptr<Opaque> answer;
};
// Completes a call without an answer from the callee. The status is OK only for connect_only.
struct CompleteAction {
  std::shared_ptr<Opaque> body;
  absl::Status status;
  PeerInfo callee;
};
// Cancels the function that serves a call.
struct CancelWorkAction {
  std::shared_ptr<Opaque> work;
};
// The answer is not taken: the caller has given the call up, or the carrier has refused the answer.
struct AnswerDroppedAction {
  std::shared_ptr<Opaque> answer;
};
// The answer is no longer remembered: its caller has acknowledged it, or has given the call up. It
// is destroyed with this action.
struct AnswerTakenAction {
  std::shared_ptr<Opaque> answer;
};
// A peer's session on this worker has ended.
struct SessionEndedAction {
  PeerInfo peer;
  uint64_t epoch = 0;
  bool goodbye = false;  // the peer ended the session itself
};
// This worker's session on a peer has ended.
struct SessionLostAction {
  PeerInfo peer;
  uint64_t epoch = 0;
  absl::Status reason;
};

using Action =
    std::variant<DialAction, CloseLinkAction, std::unique_ptr<SendControlAction>, SendRequestAction,
                 SendAnswerAction, CompleteAction, CancelWorkAction, AnswerDroppedAction,
                 AnswerTakenAction, SessionEndedAction, SessionLostAction>;
using Actions = absl::InlinedVector<Action, 2>;

void SendControl(LinkId link, Header header, Actions& actions);

}  // namespace psd::rpc
