#pragma once

// Calls between workers: sessions, retry, deduplication, deadlines and cancellation, over any
// carrier. Payloads are opaque here.
//
// One agent per worker. Every peer is known by name and lives as an incarnation; what one holds on
// the other is a session (an epoch under a lease). The rules that decide what is sent, answered,
// retried or refused are pure state machines (session_*.h); the agent gives them links, a clock
// and threads.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/timer.h"
#include "core/carrier/carrier.h"
#include "core/rpc/header.h"
#include "core/rpc/session_types.h"

namespace psd::rpc {

// What a call carries for its function, and what the function answers. rpc never looks inside.
struct Payload {
  std::string header;
  std::vector<Buffer> buffers;
};

// Where a method's function runs.
enum class RunsOn {
  kCarrierThread,  // cannot block, is short; the fastest
  // These two may block or compute; refused with RESOURCE_EXHAUSTED when the queue is full.
  kExecutor,   // what this worker does itself: it waits behind nothing that a user runs
  kUserQueue,  // what a user runs: the callers' sessions are served in turn
};

// One call being served. Shared by the agent and the function until replied. Thread-safe.
class ServerCall {
 public:
  virtual ~ServerCall() = default;

  virtual const PeerInfo& caller() const = 0;
  // Identifies the caller's session here; what the call creates for the caller is kept under it.
  virtual uint64_t session_epoch() const = 0;
  // InfiniteFuture when the caller set none. On this worker's clock.
  virtual absl::Time deadline() const = 0;
  virtual const std::string& method() const = 0;
  virtual Payload& payload() = 0;
  // The bytes attached under `tag`, or null.
  virtual const std::string* attachment(uint32_t tag) const = 0;

  // True once the caller cancelled, the deadline passed, or the caller's session ended.
  virtual bool cancelled() const = 0;
  // Calls back once when that happens (at once if it has). Dropped when the call is replied.
  virtual void OnCancel(Task callback) = 0;
  // For a mutation, immediately before its effect: true if it may still be applied. From then on
  // the call counts as applied: its answer is remembered and a cancel no longer stops it. The
  // function must not apply anything after a false.
  virtual bool BeginApply() = 0;

  // Calls back when it turns out that the caller never takes this mutation's answer (cancelled or
  // past its deadline, and the caller's word of it has come): what the answer gave it can go. At
  // most once; not when the caller's session ends, which takes all of that along. Only before
  // Reply, on the thread that replies.
  virtual void OnAnswerDropped(Task callback) = 0;
  // Answers; the first call counts, later ones are ignored. A call that is destroyed without an
  // answer is answered INTERNAL.
  virtual void Reply(absl::StatusOr<Payload> result, std::vector<Attachment> attachments = {}) = 0;
};

// FlowId::space of the sessions that peers have here; FlowId::id is the epoch.
inline constexpr uint32_t kSessionFlows = 1;

// The label of work for a call: it belongs to the session of the caller.
inline WorkLabel LabelOf(WorkLabel::Kind kind, const ServerCall& call) {
  return {kind, {kSessionFlows, call.session_epoch()}};
}

using Handler = std::function<void(std::shared_ptr<ServerCall>)>;

struct Method {
  std::string name;  // "value.fetch": layer, dot, verb
  MethodKind kind = MethodKind::kMutation;
  RunsOn runs_on = RunsOn::kExecutor;
  Handler handler;
};

// A layer's chance to look at what a request carries for it before the function runs.
class RequestHook {
 public:
  virtual ~RequestHook() = default;
  virtual uint32_t tag() const = 0;
  // Called for requests that carry an attachment under tag(). `ready` must be called once, now or
  // later; an error answers the call without running its function.
  virtual void BeforeRun(const std::shared_ptr<ServerCall>& call,
                         absl::AnyInvocable<void(absl::Status)> ready) = 0;
};

struct CallOptions {
  // How long the caller waits, sending and queueing included. ZeroDuration: as long as it takes.
  // Negative is refused.
  absl::Duration timeout = absl::Seconds(60);
  // Wait for a peer that nobody listens for, instead of failing UNAVAILABLE at once.
  bool wait_for_ready = false;
};

struct Reply {
  Payload payload;
  std::vector<Attachment> attachments;
  PeerInfo callee;  // who answered
  const std::string* attachment(uint32_t tag) const;
};

struct Request {
  std::string method;
  Payload payload;
  std::vector<Attachment> attachments;
  // When set, only this incarnation may run the call: a peer that was restarted since is answered
  // for with ABORTED, both incarnations named.
  Incarnation only_incarnation = 0;
  // Unset: what the method is registered as here, or a mutation if it is not. Must say kRead for a
  // read that only the callee registers, or its answers are remembered for nothing.
  std::optional<MethodKind> kind;
  // It is about what our session there holds (forks, contexts). A read that is not may be asked
  // again in the next session; this one fails ABORTED when the session ends before the answer.
  bool session_bound = false;
};

// A call in flight.
class Call {
 public:
  Call() = default;
  Call(Future<Reply> reply, std::function<void()> cancel)
      : reply_(std::move(reply)), cancel_(std::move(cancel)) {}

  // Errors: what the function answered; DEADLINE_EXCEEDED; CANCELLED; UNAVAILABLE (nobody
  // listens, silence beyond the retry window); ABORTED (the peer was restarted, or the session
  // ended); NOT_FOUND (no such worker or method); RESOURCE_EXHAUSTED (load, retry later). Details
  // name the peer, and say when a sent mutation's fate is unknown.
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
  const Clock* clock = &Clock::Steady();  // outlives the agent
  std::shared_ptr<carrier::Carrier>
      carrier;                         // shared with whoever made it; the agent shuts it down
  std::shared_ptr<Executor> executor;  // runs RunsOn::kExecutor and kUserQueue functions
  std::shared_ptr<TimerQueue> timers;  // deadlines, lease renewal, reconnects
  std::shared_ptr<Logger> logger;
  // What large results of methods that run on the carrier's threads are made in; null: ordinary
  // process memory.
  std::shared_ptr<Allocator> memory;  // shared with the worker
  size_t max_sessions = 65'536;
};

// How a call to a worker would go now.
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
  std::string trouble;        // why our session on it is not open, as far as is known
  uint64_t epoch_here = 0;    // of its session on us; 0 = none
  uint64_t epoch_there = 0;   // of our session on it; 0 = none
  absl::Duration lease_left;  // of its session here
  size_t calls_pending = 0;   // ours to it
  size_t calls_serving = 0;   // its to us
  size_t answers_remembered = 0;
};

// Thread-safe. Destroying it shuts down at once.
class RpcAgent {
 public:
  static absl::StatusOr<std::unique_ptr<RpcAgent>> Create(AgentOptions options);
  virtual ~RpcAgent() = default;

  virtual const PeerInfo& self() const = 0;

  // Before Start only.
  virtual void RegisterMethod(Method method) = 0;
  virtual void AddRequestHook(std::shared_ptr<RequestHook> hook) = 0;
  // Each of these two may be given any number of callbacks: every layer has its own to release.
  // All are called, in the order in which they were given.
  //
  // Called (on agent threads, no lock held) when a peer's session here has ended, for whatever
  // reason, after no function of that session can begin any more: releases what it held.
  virtual void OnSessionEnded(std::function<void(const PeerInfo&, uint64_t epoch)> callback) = 0;
  // Called when our session on a peer is gone: forks, contexts and pins held there are lost.
  virtual void OnSessionLost(std::function<void(const PeerInfo&, absl::Status)> callback) = 0;

  // Serves. `address` empty: only on connections that this worker opens. Returns the dialable
  // address ("" when not listening).
  virtual absl::StatusOr<std::string> Start(const std::string& address) = 0;

  // Makes `name` reachable at `address` (kept for ever; reconnects as needed). A second address
  // for a name replaces the first.
  virtual void AddPeer(const std::string& name, const std::string& address) = 0;
  // Opens the connection and session now; done when the peer has answered. NOT_FOUND for a name
  // neither added nor connected. FAILED_PRECONDITION when another name answers there.
  virtual Future<PeerInfo> Connect(const std::string& name, const CallOptions& options) = 0;

  // To self too (by value, without the carrier).
  virtual Call StartCall(const std::string& peer, Request request, const CallOptions& options) = 0;

  virtual std::vector<PeerStatus> Peers() const = 0;
  virtual Reach ReachOf(const std::string& name) const = 0;

  // An orderly stop. Tells all peers, refuses new calls from outside with UNAVAILABLE ("draining,
  // not applied"), and waits at most `drain` until functions that run are done, our own pending
  // calls are over, and every peer has received the answers to all that it had sent. Then cancels
  // the rest, ends our sessions on all peers (they release what we held) and shuts the carrier
  // down. Peers that still wait for answers are told which of their calls may have been applied.
  // Peers that are gone are not waited for. May be repeated; later calls do nothing.
  virtual void Shutdown(absl::Duration drain) = 0;
};

}  // namespace psd::rpc
