#pragma once

// A peer's session here: which of its calls run, which answers are remembered, until when its lease
// runs. Pure.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "core/rpc/sequence_set.h"
#include "core/rpc/session_types.h"
#include "core/rpc/stall_detector.h"

namespace psd::rpc {

// What becomes of a request.
enum class RequestVerdict {
  kRun,        // new: run it
  kRunning,    // a copy of one that runs: its answer will do for both
  kReplayed,   // a copy of one that is answered: the remembered answer was sent again
  kStale,      // the caller no longer wants it: dropped, never applied
  kTooMany,    // a read beyond max_running_reads: to be answered RESOURCE_EXHAUSTED
  kViolation,  // no honest caller sends this: the link should end
};

// Thread-compatible. Owned by the session table.
//
// Guarantees: among all copies of a mutation, whatever their order, at most one is told to run.
// Every mutation's answer is remembered until it is acknowledged, and its layers hear if its caller
// gave it up instead. Nothing is told to begin, or to
// apply, after it was cancelled, after its deadline, or after End.
class CalleeSession {
 public:
  // `origin`: where its hello comes from.
  CalleeSession(const SessionOptions& options, PeerInfo caller, uint64_t epoch, std::string origin,
                absl::Time now);

  const PeerInfo& caller() const { return caller_; }
  uint64_t epoch() const { return epoch_; }

  // ---- Connection and lease.
  // The link of the caller's latest hello: answers go there, wherever the request came from. (An
  // older link may still deliver copies, but nobody listens at its other end any more.)
  LinkId link() const { return link_; }
  void set_link(LinkId link) {
    link_ = link;
    if (link != 0) silent_ = false;
  }
  // When its last link ended, while it has none.
  absl::Time unlinked_at() const { return unlinked_at_; }
  void set_unlinked_at(absl::Time now) { unlinked_at_ = now; }
  // Its last link ended because nothing came over it, not because the other end closed it: the
  // caller may live, and keeps its name as long as its lease.
  bool silent() const { return silent_; }
  void set_silent() { silent_ = true; }
  void OnHeard(absl::Time now);
  absl::Time last_heard() const { return last_heard_; }
  absl::Time lease_until() const { return lease_until_; }
  // This worker itself stood still. Counts Leniency::kMost times until the caller is heard again:
  // so a lease ends at most that many stalls and leases late.
  void ExtendLease(absl::Duration by) {
    if (leniency_.Use()) lease_until_ += by;
  }
  uint64_t hello_number() const { return hello_number_; }
  // Where the latest hello came from, whose share of the table this session counts in.
  const std::string& origin() const { return origin_; }
  void OnHello(uint64_t number, LinkId link, std::string origin) {
    hello_number_ = number;
    set_link(link);
    origin_ = std::move(origin);
  }

  // ---- Calls.
  RequestVerdict OnRequest(LinkId link, const RequestMeta& meta, std::shared_ptr<Opaque> work,
                           Actions& actions);
  // The function is about to start: false if it must not.
  bool BeginRun(CallId call_id);
  // The mutation is about to take effect: false if it must not.
  bool BeginApply(CallId call_id);
  // The call is answered. Returns the link to answer on; 0: nowhere now (a mutation's answer is
  // remembered for the retry, a read's is dropped). `bytes` is what remembering it holds.
  LinkId OnReply(CallId call_id, std::shared_ptr<Opaque> answer, size_t bytes, Actions& actions);
  // The carrier did not take the answer of that mutation, or of a read (sequence 0), and never
  // will: `error` is the answer from now on.
  void OnAnswerRefused(uint64_t sequence, const std::shared_ptr<Opaque>& answer,
                       std::shared_ptr<Opaque> error, size_t bytes, Actions& actions);
  // The caller has given the call up: it stops, unless it applies already; its answer is dropped,
  // and a copy of the request that is still under way is stale. May be repeated. False, as below.
  bool OnCancel(CallId call_id, uint64_t sequence, Actions& actions);
  // False when the acknowledgement is one that no honest caller sends.
  bool OnAck(const Ack& ack, Actions& actions);

  // Cancels what is past its deadline.
  void Tick(absl::Time now, Actions& actions);
  // No deadline passes before this.
  absl::Time next_deadline() const { return next_deadline_; }
  // Cancels everything.
  void End(Actions& actions);

  // The mutations that were applied, or may be, and whose answers are not acknowledged.
  Ack InDoubt() const;

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
  };
  // A mutation that is not yet acknowledged. Without an answer it still runs.
  struct Record {
    CallId call_id = 0;
    std::shared_ptr<Opaque> answer;  // shared with whoever sends it
    size_t bytes = 0;
  };
  using Records = std::map<uint64_t, Record>;

  // Cancels, in the order of their ids, those for which `predicate` holds.
  template <typename Predicate>
  void CancelWhere(Predicate predicate, Actions& actions);
  void CancelRunning(Running& running, Actions& actions);
  bool WithinBounds() const;
  void Acknowledge(uint64_t first, uint64_t last, Actions& actions);

  const SessionOptions& options_;  // the worker's; outlives its sessions
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

  absl::flat_hash_map<CallId, Running> running_;  // its order is nobody's: sorted where it shows
  Records records_;                               // by sequence number
  SequenceSet acknowledged_;
  size_t mutations_running_ = 0;
  size_t remembered_bytes_ = 0;
};

}  // namespace psd::rpc
