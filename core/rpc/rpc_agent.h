#pragma once

// Calls between workers: sessions, retry, deduplication, deadlines and cancellation, over any
// carrier. Payloads are opaque here.
//
// Each worker has one agent. A peer is known by its name; each time that it is started it is a new
// incarnation. A worker has at most one session on each peer, which has an epoch and lasts as long
// as its lease is renewed. Pure state machines (session_types.h) decide what is sent, answered,
// retried or refused; the agent gives them links, a clock and threads.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/memory_budget.h"
#include "core/base/timer.h"
#include "core/carrier/carrier.h"
#include "core/rpc/access.h"
#include "core/rpc/admission.h"
#include "core/rpc/header.h"
#include "core/rpc/session_types.h"

namespace psd::rpc {

// The contents of a request or an answer. rpc never looks inside.
struct Payload {
  std::string header;
  std::vector<Buffer> buffers;
};

// The kind of thread on which a method's function runs.
enum class RunsOn {
  kCarrierThread,  // for short functions that never block; the fastest
  // Functions of the next two kinds may block or compute. A call is refused with RESOURCE_EXHAUSTED
  // if the queue is full.
  kExecutor,   // for the worker's own work, which never waits behind users' functions
  kUserQueue,  // for users' functions; the callers' sessions are served in turn
};

// One call being served. Shared by the agent and the function until replied. Thread-safe.
class ServerCall {
 public:
  virtual ~ServerCall() = default;

  virtual const PeerInfo& caller() const = 0;
  // Identifies the caller's session here. What the call creates for the caller lasts as long as
  // that session.
  virtual uint64_t session_epoch() const = 0;
  // The deadline on this worker's clock. InfiniteFuture if the caller set no timeout.
  virtual absl::Time deadline() const = 0;
  virtual const std::string& method() const = 0;
  virtual Payload& payload() = 0;
  // Returns the bytes attached under `tag`, or null.
  virtual const std::string* attachment(uint32_t tag) const = 0;

  // Charges memory that the call needs besides its message, until the call is gone. To be called by
  // the function that serves the call, before it replies. Errors: RESOURCE_EXHAUSTED.
  virtual absl::Status Charge(size_t bytes) = 0;
  // Drops the payload and attachments, and credits their memory. For a call that goes on waiting
  // after everything that it needs was taken out of its message. To be called as Charge is.
  virtual void ForgetMessage() = 0;

  // True once the caller cancelled, the deadline passed, or the caller's session ended.
  virtual bool cancelled() const = 0;
  // Runs `callback` once when cancelled() becomes true, or at once if it is. Callbacks are dropped
  // when the call is replied.
  virtual void OnCancel(Task callback) = 0;
  // To be called by a mutation immediately before it takes effect. If the result is true, the call
  // counts as applied: its answer is remembered, and a cancel no longer stops it. If the result is
  // false, the function must not apply anything.
  virtual bool BeginApply() = 0;

  // Runs `callback` when this worker learns that the caller will never take this answer, because it
  // cancelled the call, its deadline passed, or it sent the read again after the connection broke.
  // The callback releases what the answer gave the caller. It runs at most once, and not if the
  // caller's session ends, which releases everything of that session anyhow. To be called before
  // Reply, on the thread that replies.
  virtual void OnAnswerDropped(Task callback) = 0;
  // Sends the answer. Only the first answer counts. A call that is destroyed without an answer is
  // answered with INTERNAL.
  virtual void Reply(absl::StatusOr<Payload> result, std::vector<Attachment> attachments = {}) = 0;
};

// FlowId::space of the sessions that peers have here; FlowId::id is the epoch.
inline constexpr uint32_t kSessionFlows = 1;

// The label of work for a call: it belongs to the session of the caller.
inline WorkLabel LabelOf(WorkLabel::Kind kind, const ServerCall& call) {
  return {kind, {kSessionFlows, call.session_epoch()}};
}

// Returns the caller in the form in which Access needs it. The result refers to `call`.
inline Asker AskerOf(const ServerCall& call) {
  return {kAnonymous, call.caller(), call.session_epoch()};
}

using Handler = std::function<void(std::shared_ptr<ServerCall>)>;

struct Method {
  std::string name;  // "value.fetch": layer, dot, verb
  MethodKind kind = MethodKind::kMutation;
  RunsOn runs_on = RunsOn::kExecutor;
  Handler handler;
};

struct CallOptions {
  // The longest time that the caller waits, including the time for sending and queueing.
  // absl::ZeroDuration() means no timeout. A negative timeout is refused.
  absl::Duration timeout = absl::Seconds(60);
  // If true, a call to a peer at whose address nobody listens waits until somebody does. If false,
  // it fails at once with UNAVAILABLE.
  bool wait_for_ready = false;
};

struct Reply {
  Payload payload;
  std::vector<Attachment> attachments;
  PeerInfo callee;     // the peer that answered
  uint64_t epoch = 0;  // the epoch of our session there when it answered; 0 for Connect
  const std::string* attachment(uint32_t tag) const;
};

// A session of this worker on a peer. The peer issues the epochs, so another incarnation of it may
// issue the same ones.
struct SessionOnPeer {
  Incarnation incarnation = 0;
  uint64_t epoch = 0;
};

struct Request {
  std::string method;
  Payload payload;
  std::vector<Attachment> attachments;
  // If not 0, only this incarnation of the peer may run the call. If another one answers, the call
  // fails with ABORTED naming both. Without an open session on the peer the call waits for one, as
  // any other call does.
  Incarnation only_incarnation = 0;
  // If not 0, only our session there with this epoch may run the call. If that session has ended,
  // the call fails with ABORTED, even if it is a read.
  uint64_t only_epoch = 0;
  // The kind of the method. If unset, the kind under which this worker has registered the method,
  // or a mutation if it has not. Should be set to kRead for a read that only the callee registers;
  // otherwise the callee remembers its answers needlessly.
  std::optional<MethodKind> kind;
  // Whether the call refers to objects that our session there holds (forks, contexts). If so, it
  // fails with ABORTED when that session ends before the answer. Other reads are sent again in the
  // next session.
  bool session_bound = false;
};

// A call in flight.
class Call {
 public:
  Call() = default;
  Call(Future<Reply> reply, std::function<void()> cancel)
      : reply_(std::move(reply)), cancel_(std::move(cancel)) {}

  // Errors: those that the function answered; DEADLINE_EXCEEDED; CANCELLED; UNAVAILABLE (nobody
  // listens, or silence beyond the retry window); ABORTED (the peer was restarted, or the session
  // ended); NOT_FOUND (no such worker or method); RESOURCE_EXHAUSTED (too much load: retry later).
  // Details name the peer, and say when a sent mutation's fate is unknown.
  const Future<Reply>& reply() const { return reply_; }
  // Fails the call with CANCELLED, if it is not done, and tells the callee.
  void Cancel() const {
    if (cancel_) cancel_();
  }

 private:
  Future<Reply> reply_;
  std::function<void()> cancel_;
};

struct AgentOptions {
  PeerInfo self;
  SessionOptions session;
  const Clock* clock = &Clock::Steady();      // outlives the agent
  std::shared_ptr<carrier::Carrier> carrier;  // shared with its maker; the agent shuts it down
  std::shared_ptr<Executor> executor;         // runs RunsOn::kExecutor and kUserQueue functions
  std::shared_ptr<TimerQueue> timers;         // deadlines, lease renewal, reconnects
  std::shared_ptr<Logger> logger;
  // The account for results of methods that run on the carrier's threads (see MemoryScope); null
  // for ordinary process memory.
  std::shared_ptr<MemoryAccount> memory;  // shared with the worker
  size_t max_sessions = 65'536;
};

// Whether a worker can be reached, as far as is known without trying.
enum class Reach {
  kUnknown,    // the worker was never added and is not connected
  kLost,       // the latest attempt to reach the worker failed
  kReachable,  // connected, this worker itself, or not tried yet
};

// A peer as seen from here, for status pages.
struct PeerStatus {
  PeerInfo peer;
  std::string address;  // empty for a peer that called us
  bool connected = false;
  // How messages reach the peer, as Link::Description says: "shm …", "grpc …". Empty if not
  // connected.
  std::string link;
  bool shares_memory() const { return link.rfind("shm ", 0) == 0; }
  std::string why_not_shared;  // see Link::WhyNotShared
  std::string trouble;         // why our session on it is not open, if known
  uint64_t epoch_here = 0;     // epoch of its session on us; 0: no session
  uint64_t epoch_there = 0;    // epoch of our session on it; 0: no session
  absl::Duration lease_left;   // of its session here
  size_t calls_pending = 0;    // calls from here to the peer
  size_t calls_serving = 0;    // calls from the peer that run here
  size_t answers_remembered = 0;
};

// Thread-safe. The destructor shuts down at once, like Shutdown with a `drain` of zero.
class RpcAgent {
 public:
  static absl::StatusOr<std::unique_ptr<RpcAgent>> Create(AgentOptions options);
  virtual ~RpcAgent() = default;

  virtual const PeerInfo& self() const = 0;
  // Decides which requests this worker serves, including those that come through other entrances.
  virtual Admission& admission() = 0;
  // Decides what callers may do to the objects of this worker.
  virtual Access& access() = 0;

  // To be called before Start only.
  virtual void RegisterMethod(Method method) = 0;
  // Returns the names of all methods, sorted.
  virtual std::vector<std::string> Methods() const = 0;
  // The next four functions add a callback to those that are there. All callbacks are called
  // without a lock held, the first three kinds on threads of the agent and in the order in which
  // they were added.
  //
  // Adds a callback for the end of a peer's session here, whatever the reason. It runs once no
  // function of that session can begin any more, and releases what the session held.
  virtual void OnSessionEnded(std::function<void(const PeerInfo&, uint64_t epoch)> callback) = 0;
  // Adds a callback for a peer that ends its session here itself, because it stops in order. It is
  // called immediately before the callbacks of OnSessionEnded. It is not called if the goodbye is
  // lost.
  virtual void OnGoodbye(std::function<void(const PeerInfo&, uint64_t epoch)> callback) = 0;
  // Adds a callback for the end of our session on a peer: forks, contexts and pins there are lost.
  // It may run when the next session is open already, so it must compare the epoch with that of the
  // answer (Reply::epoch) in which the peer granted something.
  virtual void OnSessionLost(
      std::function<void(const PeerInfo&, uint64_t epoch, const absl::Status&)> callback) = 0;

  // Adds a callback for BeginDraining, which calls it on its own thread. The callback that was
  // added last is called first, so that upper layers come before those that they use. A layer in
  // which calls wait for calls of other workers, which no longer come, answers the waiting calls
  // there with DrainingError. From then on it must also refuse to let calls wait, because the
  // function of a call that was accepted before may still begin.
  virtual void OnDraining(std::function<void()> callback) = 0;

  // Starts to serve calls and listens at `address`. If `address` is empty, calls are served only on
  // connections that this worker opens. Returns the address that peers can dial ("" if none).
  virtual absl::StatusOr<std::string> Start(const std::string& address) = 0;

  // Sets the address at which `name` can be dialled. Replaces an earlier address. The address is
  // kept until the agent is destroyed, and connections are opened as needed.
  virtual void AddPeer(const std::string& name, const std::string& address) = 0;
  // Opens the connection and the session now. The future is set when the peer has answered.
  // Errors: NOT_FOUND for a name that was neither added nor is connected; FAILED_PRECONDITION if a
  // worker of another name answers at the address.
  virtual Future<PeerInfo> Connect(const std::string& name, const CallOptions& options) = 0;

  // Starts a call. `peer` may be this worker itself; such a call does not go through the carrier.
  virtual Call StartCall(const std::string& peer, Request request, const CallOptions& options) = 0;

  // Returns this worker's session on a peer, or on itself. Epoch 0: there is none yet, or not any
  // more.
  virtual SessionOnPeer SessionOn(const std::string& peer) const = 0;
  virtual std::vector<PeerStatus> Peers() const = 0;
  virtual Reach ReachOf(const std::string& name) const = 0;

  // Begins an orderly stop, and returns at once. Refuses new calls from outside with DrainingError,
  // runs the callbacks of OnDraining, and then tells all peers. May be repeated; later calls do
  // nothing.
  virtual void BeginDraining() = 0;
  // Waits at most `limit` until no function of a call runs here. Requires: BeginDraining.
  virtual void AwaitIdle(absl::Duration limit) = 0;
  // Stops in order. Begins to drain, unless that has begun before or `drain` is zero. Refuses new
  // calls from outside, and waits at most `drain` until running functions are done, our own pending
  // calls are over, and every peer has received the answers to all calls that it had sent. It does
  // not wait for peers that are gone. Then it cancels what is left, ends our sessions on all peers
  // (which release what we held) and shuts the carrier down. Peers that still wait for answers are
  // told which of their calls may have been applied. May be repeated; later calls do nothing.
  virtual void Shutdown(absl::Duration drain) = 0;
};

}  // namespace psd::rpc
