#pragma once

// The words that the session machines and the agent share: who a peer is, the times of the session
// rules, and the effects that the machines ask for.
//
// The machines (caller_session, callee_session, session_table, worker_sessions) are pure: no clock,
// thread or socket. Time comes in as an argument, effects come out as Actions, payloads are Opaque.

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

namespace psd::rpc {

// A worker, at one time of its life. Values compare by both fields.
struct PeerInfo {
  std::string name;
  Incarnation incarnation = 0;

  friend bool operator==(const PeerInfo& a, const PeerInfo& b) {
    return a.name == b.name && a.incarnation == b.incarnation;
  }
};

// What kind of work a method is, which decides about retry and memory of answers.
enum class MethodKind {
  kRead,      // changes nothing: repeated freely, its answers are never remembered
  kMutation,  // applied at most once per call: carries a sequence number, answers are remembered
};

// Times and bounds of the session rules. All times are upper bounds that tests shrink.
struct SessionOptions {
  absl::Duration lease = absl::Seconds(10);
  absl::Duration retry_window = absl::Seconds(30);
  absl::Duration reconnect_min = absl::Milliseconds(100);
  absl::Duration reconnect_max = absl::Seconds(2);
  absl::Duration silence = absl::Seconds(3);  // keepalive notices a dead connection within this
  size_t max_unacknowledged_answers = 1024;
  size_t max_unacknowledged_bytes = size_t{16} << 20;
  // Reads of one session that run at once; more are answered RESOURCE_EXHAUSTED.
  size_t max_running_reads = 16'384;
};

// Names a link. Given by whoever drives the machines; never zero, never reused.
using LinkId = uint64_t;
// Names a call of one caller. Never zero, never reused by one incarnation.
using CallId = uint64_t;

// What the machines keep for their driver and never look into: a call in flight, a function that
// runs, a remembered answer.
class Opaque {
 public:
  virtual ~Opaque() = default;
};

// What a caller wants done.
struct CallSpec {
  MethodKind kind = MethodKind::kMutation;
  // Nothing is sent: the call completes with OK when the session is open.
  bool connect_only = false;
  bool wait_for_ready = false;
  // Refers to what our session there holds: fails with that session, even if it is a read.
  bool session_bound = false;
  absl::Time deadline = absl::InfiniteFuture();
  Incarnation only_incarnation = 0;
  std::shared_ptr<Opaque> body;  // shared by the machine and its driver until the call is done
};

// The part of a request that the session rules read.
struct RequestMeta {
  CallId call_id = 0;
  uint64_t sequence = 0;  // 0: a read
  uint64_t epoch = 0;
  Incarnation callee_incarnation = 0;
  absl::Time deadline = absl::InfiniteFuture();
  Ack ack;
};

// ---- Effects. The driver performs them in order, outside any lock of its own.

struct DialAction {
  std::string peer;
  std::string address;
};
// No session uses the link any more. Its OnLinkClosed may still follow, and does no harm.
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
// The call is over, without an answer from the callee (OK only for connect_only).
struct CompleteAction {
  std::shared_ptr<Opaque> body;
  absl::Status status;
  PeerInfo callee;
};
// The function that serves a call should stop.
struct CancelWorkAction {
  std::shared_ptr<Opaque> work;
};
// The caller has given the call up, or the carrier has refused the answer: nobody takes it.
struct AnswerDroppedAction {
  std::shared_ptr<Opaque> answer;
};
// A peer's session here has ended.
struct SessionEndedAction {
  PeerInfo peer;
  uint64_t epoch = 0;
};
// Our session on a peer is gone.
struct SessionLostAction {
  PeerInfo peer;
  absl::Status reason;
};

using Action = std::variant<DialAction, CloseLinkAction, std::unique_ptr<SendControlAction>,
                            SendRequestAction, SendAnswerAction, CompleteAction, CancelWorkAction,
                            AnswerDroppedAction, SessionEndedAction, SessionLostAction>;
using Actions = absl::InlinedVector<Action, 2>;

inline void SendControl(LinkId link, Header header, Actions& actions) {
  auto action = std::make_unique<SendControlAction>();
  action->link = link;
  action->header = std::move(header);
  actions.push_back(std::move(action));
}

}  // namespace psd::rpc
