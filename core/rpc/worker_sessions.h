#pragma once

// All sessions of one worker, in both directions, over all its links. Takes messages and events and
// returns the actions that follow. Pure: the agent drives it with real links and a real clock, the
// simulation with simulated ones.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/rpc/callee_session.h"
#include "core/rpc/caller_session.h"
#include "core/rpc/session_table.h"
#include "core/rpc/session_types.h"
#include "core/rpc/stall_detector.h"

namespace psd::rpc {

// Counts of rare events, by which a simulation proves that it has exercised every rule.
struct SessionProbes {
  uint64_t resumed = 0;           // a session went on over a new link
  uint64_t session_ended = 0;     // a peer told us that our session there has ended
  uint64_t callee_restarted = 0;  // another incarnation answered
  uint64_t replayed = 0;          // a retry got the remembered answer
  uint64_t joined_running = 0;    // a retry met its first copy still running
  uint64_t stale_dropped = 0;     // a copy of a request that its caller gave up
  uint64_t fenced_request = 0;    // a request of a session that has ended
  uint64_t silence_noticed = 0;   // a link closed because nothing came
  uint64_t lease_ended = 0;       // a session ended because nobody renewed it
  uint64_t stall_noticed = 0;     // this process stood still, and leases were extended
  uint64_t takeover = 0;          // a newcomer took a name over
  uint64_t name_refused = 0;      // a newcomer was refused a name
  uint64_t stale_hello = 0;       // a hello overtaken by a later one
  uint64_t goodbye = 0;           // a session ended by its holder
  uint64_t refused_dial = 0;      // nobody listened
  uint64_t read_refused = 0;      // a session had too many reads running
  uint64_t dialled_both = 0;      // a peer greeted on its own link while we greeted it on ours
};

// Thread-compatible.
//
// Two workers may have several links, most often because both dialled at the same moment. Their
// sessions on each other then move to the same one of them, which both choose by the same rule: a
// link that the worker with the smaller name dialled is better than one that the other dialled, and
// a later link is better than an earlier one of the same dialler. A session never moves to a worse
// link while its present link lives.
class WorkerSessions {
 public:
  struct Options {
    PeerInfo self;
    SessionOptions session;  // the worker's own copy is used by all its sessions
    size_t max_sessions = 65'536;
    uint64_t jitter_seed = 0;
  };
  explicit WorkerSessions(Options options);
  WorkerSessions(const WorkerSessions&) = delete;
  WorkerSessions& operator=(const WorkerSessions&) = delete;

  // ---- Calls of this worker.
  // Adds a peer. An empty address means that the peer does not listen.
  void AddPeer(const std::string& name, std::string address);
  // Starts a call. A call to an unknown peer completes at once with NOT_FOUND, by an action.
  CallId StartCall(absl::Time now, const std::string& peer, CallSpec spec, Actions& actions);
  void CancelCall(const std::string& peer, CallId id, Actions& actions);
  // Returns the call's body, or null if the answer is not taken (see CallerSession), or if the link
  // is not one of the call's peer.
  std::shared_ptr<Opaque> OnAnswer(absl::Time now, LinkId link, const ReplyMeta& reply,
                                   size_t bytes, Actions& actions);
  // Fails the call whose answer came on `link` and found no room; see CallerSession.
  void OnAnswerWithoutRoom(absl::Time now, LinkId link, const ReplyMeta& reply,
                           const absl::Status& why, Actions& actions);
  void OnSendRefused(const std::string& peer, CallId id, const absl::Status& status,
                     Actions& actions);

  // ---- Links. A DialAction is answered by one OnDialed or OnDialFailed.
  void OnDialed(absl::Time now, const std::string& peer, LinkId link, Actions& actions);
  void OnDialFailed(absl::Time now, const std::string& peer, bool refused,
                    const absl::Status& status, Actions& actions);
  // `origin` is the peer's end of the connection: "grpc 10.0.0.5:41234". Links of one connection
  // share it.
  void OnAccepted(absl::Time now, LinkId link, std::string origin);
  void OnLinkClosed(absl::Time now, LinkId link, Actions& actions);
  // Handles every message except requests and replies.
  void OnControl(absl::Time now, LinkId link, const Header& header, Actions& actions);

  // ---- Calls of peers.
  // Returns the caller's session if the call is to be run. Otherwise returns null, and `actions`
  // has all that is to be done. The session may end with the next event.
  const CalleeSession* OnRequest(absl::Time now, LinkId link, const RequestMeta& meta,
                                 std::shared_ptr<Opaque> work, Actions& actions);
  // Returns the peer at the other end of the link; incarnation 0 if it has not said hello.
  PeerInfo PeerOf(LinkId link) const;
  bool BeginRun(uint64_t epoch, CallId id);
  bool BeginApply(uint64_t epoch, CallId id);
  // For the next two functions see CalleeSession.
  AnswerRoute OnReply(absl::Time now, uint64_t epoch, CallId id, std::shared_ptr<Opaque> answer,
                      size_t bytes, bool gives, Actions& actions);
  void OnAnswerRefused(uint64_t epoch, CallId id, const std::shared_ptr<Opaque>& answer,
                       Actions& actions);

  // ---- Time. Tick must be called at NextWake(), which is at most the stall detector's max_tick()
  // ahead.
  void Tick(absl::Time now, Actions& actions);
  absl::Time NextWake() const { return next_wake_; }

  // ---- Leaving.
  // Asks every peer to send nothing new and to end its session here once all is answered. New
  // sessions are refused; existing ones may be resumed.
  void BeginLeaving(absl::Time now, Actions& actions);
  // Returns whether no function of a call runs here.
  bool Idle() const;
  // After BeginLeaving: returns whether nothing of ours is pending, nothing runs here, and every
  // peer has said goodbye. A peer that is not connected is waited for only as long as a living peer
  // takes to reconnect. Asked again at every event and Tick.
  bool Settled(absl::Time now) const;
  // Ends our sessions on all peers and theirs here; pending calls fail with CANCELLED. Peers that
  // have not said goodbye are told which of their mutations may have been applied.
  void Leave(Actions& actions);

  const SessionProbes& probes() const { return probes_; }
  const std::map<std::string, std::unique_ptr<CallerSession>>& callers() const { return callers_; }
  const SessionTable& table() const { return table_; }
  SessionTable& table() { return table_; }

 private:
  struct LinkState {
    bool dialled = false;             // by this worker
    std::string origin;               // the peer's end of the connection
    PeerInfo peer;                    // as its hello says; incarnation 0: no hello yet
    uint64_t epoch = 0;               // of the peer's session here
    CallerSession* caller = nullptr;  // to the peer at the other end, once known
    absl::Time last_heard;
    absl::Time last_sent;
    // When a link that the peer dialled is closed if no session has begun on it, whatever else
    // comes over it.
    absl::Time greet_by = absl::InfiniteFuture();
    Leniency leniency;  // for the silence of this link after stalls of this process
  };

  CallerSession& CallerTo(const std::string& name);
  LinkState* Heard(absl::Time now, LinkId link);
  void NoteSent(absl::Time now, const Actions& actions, size_t from);
  void CloseLink(absl::Time now, LinkId link, absl::Status reason, Actions& actions);
  void Detach(absl::Time now, LinkId link, const LinkState& state, Actions& actions);
  LinkId BestLink(const PeerInfo& peer) const;
  bool IsBetter(LinkId link, LinkId than) const;
  // Whether the session that the peer has here uses the link.
  bool PeerUses(LinkId link);

  void OnHello(absl::Time now, LinkId link, LinkState& state, const Header& hello,
               Actions& actions);
  void MoveTo(absl::Time now, LinkId link, const LinkState& state, Actions& actions);
  void Answer(LinkId link, const Header& hello, const HelloOutcome& outcome, Actions& actions);
  void Refuse(LinkId link, const Header& message, Actions& actions);
  void RefuseRead(LinkId link, CallId call, const CalleeSession& session, Actions& actions);
  void RefuseCall(LinkId link, CallId call, uint64_t epoch, const absl::Status& why,
                  Actions& actions);
  void OnAckMessage(absl::Time now, LinkId link, LinkState& state, const Header& header,
                    Actions& actions);
  void OnCancelled(absl::Time now, const LinkState& state, const Header& header, Actions& actions);
  void OnGoodbye(LinkState& state, const Header& header, Actions& actions);
  void KeepLinksAlive(absl::Time now, Actions& actions);
  static void KeepAlive(LinkId link, CallerSession* caller, Actions& actions);
  void AfterTableEvents(bool left, Actions& actions, size_t from);
  void OnOutcome(absl::Time now, LinkId link, CallerSession& caller, const Header& header,
                 Actions& actions);
  void ForgetStrangers();
  bool IsSelf(const PeerInfo& peer) const { return peer.incarnation == options_.self.incarnation; }
  void TellLeaving(const CalleeSession& session, Actions& actions) const;
  void TellAllLeaving(Actions& actions) const;
  void TellLeft(const CalleeSession& session, Actions& actions) const;
  absl::Duration ReturnTime() const;
  void WakeBy(absl::Time when) { next_wake_ = std::min(next_wake_, when); }
  absl::Status UnknownPeer(absl::string_view name) const;

  const Options options_;
  SessionTable table_;
  StallDetector stalls_;
  uint64_t hellos_ = 0;
  std::map<std::string, std::unique_ptr<CallerSession>> callers_;  // by peer name
  std::map<LinkId, LinkState> links_;
  // By peer name: the links on which a worker of that name has said hello.
  absl::flat_hash_map<std::string, std::vector<LinkId>> greeted_;
  CallId next_call_ = 1;
  absl::Time next_wake_ = absl::InfinitePast();
  absl::Time leaving_since_ = absl::InfiniteFuture();
  SessionProbes probes_;
};

}  // namespace psd::rpc
