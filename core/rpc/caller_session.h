#pragma once

// Our session on one peer: calls in flight, sequence numbers, what is sent again after a
// reconnect, acknowledgements, and when to give up. Pure.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/rpc/sequence_set.h"
#include "core/rpc/session_types.h"

namespace psd::rpc {

// Thread-compatible. Owned by WorkerSessions.
//
// Guarantees: every call started completes exactly once, by an answer, by an Action, or by
// CompleteAll. A mutation is sent with one sequence number for ever, and only to the session that
// it was first sent to. An error that a CompleteAction carries for a mutation that was sent says
// that its fate is unknown.
class CallerSession {
 public:
  enum class State {
    kDown,      // no link
    kDialing,   // asked for one
    kGreeting,  // said hello, waits for the welcome
    kOpen,
    kLeft,  // the peer stops and our session on it has ended; the link has not closed yet
  };

  // `jitter_seed` spreads the reconnects of many workers. `hellos` counts the greetings of this
  // worker to all peers, so that the number of a greeting grows even if its peer was forgotten and
  // is met again; it outlives the session.
  CallerSession(const SessionOptions& options, PeerInfo self, std::string peer,
                uint64_t jitter_seed, uint64_t& hellos);

  const std::string& peer() const { return peer_.name; }
  const PeerInfo& peer_info() const { return peer_; }  // incarnation 0: never met
  State state() const { return state_; }
  LinkId link() const { return link_; }
  uint64_t epoch() const { return epoch_; }
  size_t pending() const { return pending_.size(); }
  // When the open session lost its link last.
  absl::Time lost_at() const { return lost_at_; }
  // The latest attempt to reach the peer failed.
  bool unreachable() const { return unreachable_; }
  // Why there is no session, as far as is known: "connection refused: …". Empty when there is one.
  const std::string& trouble() const { return trouble_; }
  const std::string& address() const { return address_; }
  // Saying something this often keeps the connection and, on the peer, the lease alive.
  absl::Duration talk_every() const { return talk_every_; }

  // Empty: the peer does not listen, or we do not know where. Kept for ever.
  void set_address(std::string address) {
    address_ = std::move(address);
    added_ = true;
  }
  // Nobody would miss it: a peer that came and went by itself.
  bool Forgettable() const {
    return !added_ && state_ == State::kDown && pending_.empty() && !expected_back_;
  }

  // ---- Calls. `id` is never reused.
  void Start(absl::Time now, CallId id, CallSpec spec, Actions& actions);
  void Cancel(CallId id, Actions& actions);
  // The callee answered: the call's body, or null if the call is over already. `bytes` is the size
  // of the answer.
  std::shared_ptr<Opaque> OnAnswer(CallId id, size_t bytes, Actions& actions);
  // The callee has heard the cancel of a call that was given up.
  void OnCancelled(CallId id, Actions& actions);
  // The carrier did not take the request and never will.
  void OnSendRefused(CallId id, const absl::Status& status, Actions& actions);

  // ---- Connection.
  // A link to the peer is there, or is to be greeted again.
  void OnLink(absl::Time now, LinkId link, Actions& actions);
  // `refused`: nobody listens there.
  void OnDialFailed(absl::Time now, bool refused, const absl::Status& status, Actions& actions);
  void OnLinkClosed(absl::Time now, LinkId link, Actions& actions);
  void OnWelcome(absl::Time now, LinkId link, const Header& welcome, Actions& actions);
  // The peer does not let us in. UNAVAILABLE: not now; anything else fails the pending calls.
  void OnRefused(absl::Time now, LinkId link, const Header& refused, Actions& actions);
  // The peer has no session of the epoch and callee incarnation that `ended` quotes.
  void OnSessionEnded(absl::Time now, LinkId link, const Header& ended, Actions& actions);
  // The peer is about to stop. If it does not let us in any more, calls that do not wait for it
  // fail. Otherwise nothing new is sent there, and once all that was sent is answered, our session
  // there ends with a goodbye.
  void OnLeaving(LinkId link, const Header& leaving, Actions& actions);
  // The peer stops now: every pending call fails, and its error says whether it was applied.
  void OnLeft(LinkId link, const Header& left, Actions& actions);
  // The peer's own session here ended. If it cannot be dialled and is not connected, nobody will
  // answer. `left`: it said goodbye, and our session on it goes with the link.
  void OnPeerGone(bool left, Actions& actions);

  void Tick(absl::Time now, Actions& actions);
  // Nothing is to do before this, unless something happens.
  absl::Time NextWake() const;

  // Tells the peer which answers have come. Requires: open.
  void Announce(Actions& actions);
  // Every pending call fails with `status`.
  void CompleteAll(const absl::Status& status, Actions& actions);
  // The session is given up: nothing is kept alive for it any more.
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
  void MaybeDial(absl::Time now, Actions& actions);
  void Backoff(absl::Time now);
  void GoDown(absl::Time now);
  void Greet(absl::Time now, Actions& actions);
  void OnWrongName(absl::Time now, const std::string& name, Actions& actions);

  // What a request should carry now.
  Ack TakeAck();
  void Send(CallId id, Pending& call, Actions& actions);
  void SendOrWait(CallId id, Pending& call, Actions& actions);
  bool WindowOpen() const;
  bool PeerLeaves() const { return peer_leaving_ || state_ == State::kLeft; }
  void SayGoodbyeIfDone(Actions& actions);
  template <typename Predicate>
  void EndInDoubt(Predicate may_be_applied, Actions& actions);
  void EndWithPeer(Actions& actions);
  absl::Status PeerStops() const;
  void DrainWindow(Actions& actions);
  void AnnounceIfDue(Actions& actions);
  void SendCancel(CallId id, uint64_t sequence, Actions& actions);
  void SendCancels(Actions& actions);
  void SendPending(Actions& actions);

  // Ends the call. If the peer may have had it, it is to be cancelled there. AfterFailing follows
  // when all calls that fail together have failed.
  void Fail(PendingMap::iterator call, absl::Status status, Actions& actions);
  void AfterFailing(Actions& actions);
  template <typename Predicate>
  void FailWhere(Predicate predicate, const absl::Status& status, Actions& actions);
  void FailExpired(absl::Time now, Actions& actions);
  // Every call that belongs to the session fails with `error`, and those for which `fails_too`
  // holds.
  template <typename Predicate>
  void LoseSession(const absl::Status& reason, const absl::Status& error, Predicate fails_too,
                   Actions& actions);
  void OnRestarted(Incarnation now_there, Actions& actions);
  void OnEnded(const absl::Status& why, Actions& actions);
  void FailOtherIncarnations(Actions& actions);
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
  bool expected_back_ = false;  // met before, and not known to be gone
  bool leaving_ = false;        // said goodbye
  bool peer_leaving_ = false;   // it is about to stop, and our session on it is still open
  bool unreachable_ = false;
  absl::Time greeted_at_ = absl::InfinitePast();
  absl::Time opened_at_ = absl::InfinitePast();
  absl::Time lost_at_ = absl::InfinitePast();
  absl::Time next_dial_ = absl::InfinitePast();
  absl::Duration backoff_ = absl::ZeroDuration();
  std::string trouble_;  // of the latest attempt to open the session
  uint64_t jitter_;

  uint64_t epoch_ = 0;
  absl::Duration talk_every_;
  uint64_t next_sequence_ = 1;
  SequenceSet settled_;     // answered, or never taken
  size_t in_flight_ = 0;    // mutations with a number that is not settled
  size_t unannounced_ = 0;  // answers that the peer still remembers, as far as we know
  size_t unannounced_bytes_ = 0;

  PendingMap pending_;
  // Calls that are over here, and that the peer has not said to have cancelled: their sequence
  // numbers, 0 for reads. Such a mutation keeps its place in the window.
  absl::flat_hash_map<CallId, uint64_t> given_up_;
  std::deque<CallId> waiting_;                       // for the window; may name calls that are over
  absl::Time next_expiry_ = absl::InfiniteFuture();  // no call expires before
};

}  // namespace psd::rpc
