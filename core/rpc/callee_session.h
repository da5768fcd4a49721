#pragma once

// A peer's session on this worker: the running calls of the peer, the answers that are remembered
// for it, and the lease. Pure.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/memory_budget.h"
#include "core/base/stepwise_charge.h"
#include "core/rpc/sequence_set.h"
#include "core/rpc/session_types.h"
#include "core/rpc/stall_detector.h"

namespace psd::rpc {

// The decision about a request.
enum class RequestVerdict {
  kRun,       // it is new and is to be run
  kRunning,   // it is a copy of a running request; one answer serves both
  kReplayed,  // it is a copy of an answered request; the remembered answer was sent again
  kStale,     // the caller no longer wants it, or its answer is on the way; it is dropped
  kTooMany,   // a read beyond max_running_reads; to be answered with RESOURCE_EXHAUSTED
  kNoMemory,  // there is no memory for another call; to be answered with refusal()
  // A different request has this sequence number, and is running or was answered. Between workers
  // this breaks the protocol. For a gateway it is an error of the client, which chooses its
  // numbers.
  kOther,
  kViolation,  // it breaks the protocol; the link should end
};

// Thread-compatible. Owned by the session table.
//
// Guarantees: of all copies of a mutation, in whatever order they come, at most one is run. A
// different request with the sequence number of a remembered answer is not run. The answer of a
// mutation is remembered until the caller acknowledges it. If the caller does not take an answer,
// because it gives the call up or sends the read again, the layer that answered is told
// (AnswerDroppedAction). No call begins or applies after it was cancelled, after its deadline, or
// after End.
class CalleeSession {
 public:
  // The charge for each session of a worker. It covers the first few calls and contexts, so that a
  // session can work whatever others hold.
  static constexpr size_t kSessionBytes = size_t{32} << 10;
  // The number of calls that kSessionBytes covers.
  static constexpr size_t kOwnCalls = 16;
  // The charge for one more call: its request, and the answer that is remembered.
  static constexpr size_t kCallBytes = size_t{1} << 10;
  // The most reads that are remembered between their answer, or cancel, and the time when they are
  // known to be over at the caller. If there are more, the oldest is forgotten.
  static constexpr size_t kMaxRememberedReads = 16'384;

  // `origin` is the peer's end of the connection over which the hello came: "grpc 10.0.0.5:41234".
  // `charge` covers the session and its first `own_calls` calls. Further calls are charged to
  // options.memory, in steps of `own_calls`. Requires: `options` outlives the session.
  CalleeSession(const SessionOptions& options, PeerInfo caller, uint64_t epoch, std::string origin,
                absl::Time now, MemoryCharge charge, size_t own_calls = kOwnCalls);

  const PeerInfo& caller() const { return caller_; }
  uint64_t epoch() const { return epoch_; }

  // ---- Connection and lease.
  // The link of the caller's latest hello. All answers go to this link, even if the request came
  // over another one: an older link may still deliver copies, but nobody listens at its other end
  // any more.
  LinkId link() const { return link_; }
  void set_link(LinkId link) {
    link_ = link;
    if (link != 0) silent_ = false;
  }
  // The time when the latest link ended, if the session has no link now.
  absl::Time unlinked_at() const { return unlinked_at_; }
  void set_unlinked_at(absl::Time now) { unlinked_at_ = now; }
  // True if the last link ended because nothing came over it, not because the peer closed it. The
  // caller may still live then, so it keeps its name until its lease ends.
  bool silent() const { return silent_; }
  void set_silent() { silent_ = true; }
  void OnHeard(absl::Time now);
  absl::Time last_heard() const { return last_heard_; }
  absl::Time lease_until() const { return lease_until_; }
  // Extends the lease after a stall of this worker. Does nothing once it has been called
  // Leniency::kMost times without a message from the caller, so stalls can delay the end of a lease
  // by a bounded time only.
  void ExtendLease(absl::Duration by) {
    if (leniency_.Use()) lease_until_ += by;
  }
  uint64_t hello_number() const { return hello_number_; }
  // The origin of the latest hello. The session counts against that origin's share of the table.
  const std::string& origin() const { return origin_; }
  void OnHello(uint64_t number, LinkId link, std::string origin) {
    hello_number_ = number;
    set_link(link);
    origin_ = std::move(origin);
  }

  // ---- Calls.
  RequestVerdict OnRequest(LinkId link, const RequestMeta& meta, std::shared_ptr<Opaque> work,
                           Actions& actions);
  // Why the latest request got kNoMemory: RESOURCE_EXHAUSTED. Copies of the request get the same
  // error.
  const absl::Status& refusal() const { return refusal_; }
  // Checks that there is memory for another call. If it fails, the caller of OnRequest refuses the
  // request without passing it to OnRequest, so that its number may still be run later. Errors:
  // RESOURCE_EXHAUSTED naming need, budget and use.
  absl::Status CheckRoom();
  // To be called before the function starts. Returns false if it must not start.
  bool BeginRun(CallId call_id);
  // To be called before a mutation takes effect. Returns false if it must not.
  bool BeginApply(CallId call_id);
  // Records the answer of a call. Returns where to send it. If there is no link now, a mutation's
  // answer is remembered for the retry, and a read's answer is dropped. `bytes` is the memory that
  // the remembered answer takes. `gives` says whether something must be taken back if the answer is
  // dropped; the answer of a read is remembered only if this is true.
  AnswerRoute OnReply(CallId call_id, std::shared_ptr<Opaque> answer, size_t bytes, bool gives,
                      Actions& actions);
  // To be called when the carrier has refused the answer of a read and will never take it.
  void OnAnswerRefused(CallId call_id, const std::shared_ptr<Opaque>& answer, Actions& actions);
  // To be called when the caller has given the call up. The call stops, unless it is being applied
  // already; its answer is dropped, and a copy of the request that is still under way is stale. May
  // be repeated. Returns false in the same cases as OnAck.
  bool OnCancel(CallId call_id, uint64_t sequence, Actions& actions);
  // Forgets the answers that `ack` acknowledges. Returns false if `ack` breaks the protocol.
  bool OnAck(const Ack& ack, Actions& actions);
  // Records that the calls with smaller ids are over at the caller, which holds what their answers
  // gave.
  void OnCallsOver(CallId lowest_open);

  // Cancels the calls whose deadlines have passed.
  void Tick(absl::Time now, Actions& actions);
  // A lower bound on the next deadline of a running call.
  absl::Time next_deadline() const { return next_deadline_; }
  // Cancels all running calls.
  void End(Actions& actions);

  // Returns the mutations that were or may be applied and whose answers are not acknowledged.
  Ack InDoubt() const;

  // Whether a request with that sequence number runs, was answered, or is over at the caller.
  bool Knows(uint64_t sequence) const {
    return records_.count(sequence) != 0 || acknowledged_.Contains(sequence);
  }
  // All mutations up to this sequence number are over at the caller.
  uint64_t acknowledged_up_to() const { return acknowledged_.watermark(); }
  // The number of running calls, including those that the caller has given up.
  size_t running() const { return running_.size(); }
  size_t remembered() const { return records_.size() - mutations_running_; }
  size_t remembered_bytes() const { return remembered_bytes_; }

 private:
  struct Running {
    uint64_t sequence = 0;
    absl::Time deadline;
    std::shared_ptr<Opaque> work;  // shared with the function
    bool applying = false;
    bool cancelled = false;
    bool given_up = false;  // by its caller
    uint32_t attempt = 0;   // for a read: the attempt of the latest copy
  };
  // A mutation that is not yet acknowledged.
  struct Record {
    CallId call_id = 0;
    uint64_t fingerprint = 0;
    std::shared_ptr<Opaque> answer;  // null while it runs; shared with the driver that sends it
    size_t bytes = 0;
    bool applied = false;  // whether its function began to apply before it answered
  };
  using Records = std::map<uint64_t, Record>;
  // A read that was answered or given up, and is not known to be over at the caller.
  struct ReadRecord {
    std::shared_ptr<Opaque> answer;  // null if it gave nothing; shared with the driver
    uint32_t attempt = 0;            // copies of this attempt and of earlier ones are stale
  };

  // Cancels the running calls for which `predicate` holds, in the order of their ids.
  template <typename Predicate>
  void CancelWhere(Predicate predicate, Actions& actions);
  void CancelRunning(Running& running, Actions& actions);
  bool WithinBounds() const;
  RequestVerdict OnRead(const RequestMeta& meta, Actions& actions);
  void RememberRead(CallId call_id, ReadRecord read);
  // Charges one more call. If there is no memory, sets refusal_ and returns false.
  bool HoldCall();
  void ReleaseCalls(size_t calls);
  void Acknowledge(uint64_t first, uint64_t last, Actions& actions);

  const SessionOptions& options_;  // shared by all sessions of its owner
  const PeerInfo caller_;
  const uint64_t epoch_;
  LinkId link_ = 0;
  uint64_t hello_number_ = 0;
  std::string origin_;
  absl::Time last_heard_;
  absl::Time lease_until_;
  Leniency leniency_;
  bool silent_ = false;
  absl::Time unlinked_at_ = absl::InfinitePast();
  absl::Time next_deadline_ = absl::InfiniteFuture();

  absl::flat_hash_map<CallId, Running> running_;  // unsorted; sorted by id where the order matters
  Records records_;                               // by sequence number
  std::map<CallId, ReadRecord> reads_;
  CallId lowest_open_ = 0;  // the caller's calls with smaller ids are over
  SequenceSet acknowledged_;
  size_t mutations_running_ = 0;
  size_t remembered_bytes_ = 0;
  const MemoryCharge charge_;
  StepwiseCharge held_calls_;  // for running calls and remembered answers
  SequenceSet refused_;        // mutations for which there was no memory; they are never run
  uint64_t last_refused_ = 0;
  absl::Status refusal_;
};

}  // namespace psd::rpc
