#pragma once

// This worker's session on one peer: calls in flight, sequence numbers, retries after a reconnect,
// acknowledgements, and the rules for giving calls up. Pure.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/rpc/sequence_set.h"
#include "core/rpc/session_types.h"

namespace psd::rpc {

// Thread-compatible. Owned by WorkerSessions.
//
// Guarantees: every call that was started completes exactly once: by an answer, by a CompleteAction
// or by CompleteAll. A mutation keeps the sequence number with which it was first sent, and is sent
// only in that session. If a CompleteAction fails a mutation that was sent, its error says that the
// mutation's fate is unknown.
class CallerSession {
 public:
  enum class State {
    kDown,      // no link
    kDialing,   // has asked for a link
    kGreeting,  // has sent a hello and waits for the welcome
    kOpen,
    kLeft,  // the peer stops and the session on it has ended; the link has not closed yet
  };

  // `jitter_seed` spreads the reconnects of many workers in time. `hellos` counts the hellos that
  // this worker sends to all peers; their numbers therefore grow even if a peer was forgotten and
  // is met again. Requires: `hellos` outlives the session.
  CallerSession(const SessionOptions& options, PeerInfo self, std::string peer,
                uint64_t jitter_seed, uint64_t& hellos);

  const std::string& peer() const { return peer_.name; }
  const PeerInfo& peer_info() const { return peer_; }  // incarnation 0: never met
  State state() const { return state_; }
  LinkId link() const { return link_; }
  uint64_t epoch() const { return epoch_; }
  size_t pending() const { return pending_.size(); }
  // The time when the open session last lost its link.
  absl::Time lost_at() const { return lost_at_; }
  // Whether the latest attempt to reach the peer failed.
  bool unreachable() const { return unreachable_; }
  // Why there is no session, if known: "connection refused: …". Empty if there is one.
  const std::string& trouble() const { return trouble_; }
  const std::string& address() const { return address_; }
  // The interval at which this worker must send something, so that the connection and the lease
  // stay alive.
  absl::Duration talk_every() const { return talk_every_; }

  // Sets the address to dial; empty if the peer does not listen or its address is unknown. The peer
  // is never forgotten afterwards.
  void set_address(std::string address) {
    address_ = std::move(address);
    added_ = true;
  }
  // Whether only a link that the peer opens can reach it.
  bool NeedsPeersLink() const { return state_ == State::kDown && !Dialable(); }
  // Whether this object can be deleted: the peer connected by itself, was never added, and is gone.
  bool Forgettable() const {
    return !added_ && state_ == State::kDown && pending_.empty() && !expected_back_;
  }

  // ---- Calls. `id` is never reused.
  void Start(absl::Time now, CallId id, CallSpec spec, Actions& actions);
  void Cancel(CallId id, Actions& actions);
  // Records an answer of `bytes` bytes. Returns the call's body, or null if the answer is not
  // accepted: the call is over, the answer was given in an earlier session, or it gives references
  // and the read was sent again since. In the last two cases the references are taken back, and
  // another answer comes.
  std::shared_ptr<Opaque> OnAnswer(const ReplyMeta& reply, size_t bytes, Actions& actions);
  // To be called when the callee's answer has come but this worker has no memory for it. The call
  // fails with `why` as if it were given up, so that the callee takes back what its answer gave.
  void OnAnswerWithoutRoom(const ReplyMeta& reply, const absl::Status& why, Actions& actions);
  // To be called when the callee has received the cancel of a call that was given up.
  void OnCancelled(CallId id, Actions& actions);
  // To be called when the carrier has refused to send the request, and would refuse it again. After
  // RESOURCE_EXHAUSTED the error of the call names this worker, which lacks the memory.
  void OnSendRefused(CallId id, const absl::Status& status, Actions& actions);

  // ---- Connection.
  // To be called for a new link to the peer, or the present one. Sends a hello over it.
  void OnLink(absl::Time now, LinkId link, Actions& actions);
  // `refused` means that nobody listens at the address.
  void OnDialFailed(absl::Time now, bool refused, const absl::Status& status, Actions& actions);
  void OnLinkClosed(absl::Time now, LinkId link, Actions& actions);
  void OnWelcome(absl::Time now, LinkId link, const Header& welcome, Actions& actions);
  // To be called when the peer has refused the hello. UNAVAILABLE means that it may accept one
  // later; all other codes fail the pending calls. The link is closed, unless `peer_uses_link` (the
  // peer's own session on this worker uses it) and the peer only lacks a place for this worker
  // (RESOURCE_EXHAUSTED).
  void OnRefused(absl::Time now, LinkId link, const Header& refused, bool peer_uses_link,
                 Actions& actions);
  // To be called when the peer says that it has no session with the epoch and callee incarnation
  // that `ended` quotes.
  void OnSessionEnded(absl::Time now, LinkId link, const Header& ended, Actions& actions);
  // To be called when the peer is about to stop. If it admits no new session, pending calls fail
  // unless they wait for ready. Otherwise nothing new is sent to it, and the session ends with a
  // goodbye once all calls that were sent are answered.
  void OnLeaving(LinkId link, const Header& leaving, Actions& actions);
  // To be called when the peer stops. Every pending call fails, and its error says whether it was
  // applied.
  void OnLeft(LinkId link, const Header& left, Actions& actions);
  // To be called when the peer's own session on this worker has ended. If the peer cannot be
  // dialled and is not connected, pending calls fail. `left` means that it said goodbye; our
  // session on it then ends with the link.
  void OnPeerGone(bool left, Actions& actions);

  void Tick(absl::Time now, Actions& actions);
  // The time at which Tick must be called if nothing else happens before.
  absl::Time NextWake() const;

  // Tells the peer which answers have come. Requires: the session is open.
  void Announce(Actions& actions);
  // Fails every pending call with `status`.
  void CompleteAll(const absl::Status& status, Actions& actions);
  // Gives the session up, so that its lease is not renewed any more.
  void Forget() { epoch_ = 0; }

 private:
  struct Pending {
    CallSpec spec;
    absl::Time started;
    uint64_t sequence = 0;  // 0: a read, or not sent yet
    uint32_t sends = 0;
    bool waits_for_window = false;
  };
  using PendingMap = absl::flat_hash_map<CallId, Pending>;

  bool Dialable() const { return !address_.empty(); }
  // Whether a call is for the incarnation of the peer that this worker last met.
  bool OfSession(const CallSpec& spec) const {
    return spec.only_incarnation == 0 || spec.only_incarnation == peer_.incarnation;
  }
  void MaybeDial(absl::Time now, Actions& actions);
  void Backoff(absl::Time now);
  void GoDown(absl::Time now);
  void Greet(absl::Time now, Actions& actions);
  void OnWrongName(absl::Time now, const std::string& name, Actions& actions);

  // All calls with smaller ids are over here, and their cancels have been answered.
  CallId LowestOpen() const;
  // Returns the acknowledgement for the next request.
  Ack TakeAck();
  void Send(CallId id, Pending& call, Actions& actions);
  void SendOrWait(CallId id, Pending& call, Actions& actions);
  bool WindowOpen() const;
  bool PeerLeaves() const { return peer_leaving_ || state_ == State::kLeft; }
  void SayGoodbyeIfDone(Actions& actions);
  void EndInDoubt(absl::FunctionRef<bool(uint64_t sequence)> may_be_applied, Actions& actions);
  void EndWithPeer(Actions& actions);
  absl::Status PeerStops() const;
  void DrainWindow(Actions& actions);
  void AnnounceIfDue(Actions& actions);
  void SendCancel(CallId id, uint64_t sequence, Actions& actions);
  // Records that the call must be cancelled on the peer. Sends the cancel now if the session is
  // open.
  void GiveUp(CallId id, uint64_t sequence, Actions& actions);
  void SendCancels(Actions& actions);
  void SendPending(Actions& actions);

  // Completes the call with an error. Records that it must be cancelled on the peer if the peer may
  // have received it. AfterFailing must follow once all calls that fail together have failed.
  void Fail(PendingMap::iterator call, absl::Status status, Actions& actions);
  void AfterFailing(Actions& actions);
  // Returns `status` with this worker as the one that failed.
  absl::Status OfSelf(absl::Status status) const;
  void FailWhere(absl::FunctionRef<bool(const Pending&)> predicate, const absl::Status& status,
                 Actions& actions);
  void FailExpired(absl::Time now, Actions& actions);
  // Fails every call that belongs to the session with `error`, and also those for which `fails_too`
  // holds.
  void LoseSession(const absl::Status& reason, const absl::Status& error,
                   absl::FunctionRef<bool(const Pending&)> fails_too, Actions& actions);
  void OnRestarted(Incarnation now_there, Actions& actions);
  void OnEnded(const absl::Status& why, Actions& actions);
  void FailOtherIncarnations(Actions& actions);
  absl::Status SessionGone(const CallSpec& spec) const;
  absl::Status WrongIncarnation(Incarnation meant, Incarnation actual) const;
  void GiveUpIfGone(Actions& actions);
  absl::Status Unreachable() const;
  absl::Status NoAnswer() const;
  absl::Status Expired() const;

  const SessionOptions& options_;  // the worker's; outlives its sessions
  const PeerInfo self_;
  PeerInfo peer_;
  std::string address_;

  State state_ = State::kDown;
  LinkId link_ = 0;
  uint64_t& hellos_;            // the worker's
  uint64_t hello_number_ = 0;   // of the latest greeting
  bool added_ = false;          // by name, with or without an address
  bool expected_back_ = false;  // the peer was met before and is not known to be gone
  bool leaving_ = false;        // we have said goodbye
  bool peer_leaving_ = false;   // the peer is about to stop; our session on it is still open
  bool unreachable_ = false;
  absl::Time greeted_at_ = absl::InfinitePast();
  absl::Time opened_at_ = absl::InfinitePast();
  absl::Time lost_at_ = absl::InfinitePast();
  absl::Time next_dial_ = absl::InfinitePast();
  absl::Duration backoff_ = absl::ZeroDuration();
  std::string trouble_;  // why the latest attempt to open the session failed
  uint64_t jitter_;

  uint64_t epoch_ = 0;
  absl::Duration talk_every_;
  uint64_t next_sequence_ = 1;
  SequenceSet settled_;     // mutations that were answered, or whose cancel was answered
  size_t in_flight_ = 0;    // mutations whose numbers are not settled
  size_t unannounced_ = 0;  // answers that we have not acknowledged to the peer yet
  size_t unannounced_bytes_ = 0;
  size_t unannounced_reads_ = 0;  // reads whose answers gave something, since the last Announce

  CallId last_call_ = 0;  // the latest call that was started
  PendingMap pending_;
  // Calls that are over here and whose cancel the peer has not answered, with their sequence
  // numbers (0 for reads). Such a mutation keeps its place in the window.
  absl::flat_hash_map<CallId, uint64_t> given_up_;
  std::deque<CallId> waiting_;  // calls that wait for the window; some may be over already
  absl::Time next_expiry_ = absl::InfiniteFuture();  // no call expires before this
};

}  // namespace psd::rpc
