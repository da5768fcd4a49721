// WorkerSessions: control messages. Greets and answers greetings, and handles acknowledgements,
// cancels and goodbyes.

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/rpc/worker_sessions.h"

namespace psd::rpc {

void WorkerSessions::OnControl(absl::Time now, LinkId link, const Header& header,
                               Actions& actions) {
  LinkState* state = Heard(now, link);
  if (state == nullptr) return;
  switch (header.kind) {
    case MessageKind::kHello:
      return OnHello(now, link, *state, header, actions);
    case MessageKind::kWelcome:
    case MessageKind::kRefused:
    case MessageKind::kSessionEnded:
      if (state->caller != nullptr) OnOutcome(now, link, *state->caller, header, actions);
      return;
    case MessageKind::kCancelled:
      return OnCancelled(now, *state, header, actions);
    case MessageKind::kCancel:
    case MessageKind::kKeepalive:
      return OnAckMessage(now, link, *state, header, actions);
    case MessageKind::kGoodbye:
      return OnGoodbye(*state, header, actions);
    case MessageKind::kLeaving:
      if (state->caller != nullptr) state->caller->OnLeaving(link, header, actions);
      return;
    case MessageKind::kLeft:
      if (state->caller != nullptr) state->caller->OnLeft(link, header, actions);
      return;
    case MessageKind::kRequest:
    case MessageKind::kReply:
      return;  // not control messages: they come through OnRequest and OnAnswer
  }
}

// Handles the peer's messages about our session there.
void WorkerSessions::OnOutcome(absl::Time now, LinkId link, CallerSession& caller,
                               const Header& header, Actions& actions) {
  uint64_t epoch = caller.epoch();
  Incarnation incarnation = caller.peer_info().incarnation;
  CallerSession::State before = caller.state();
  size_t from = actions.size();
  switch (header.kind) {
    case MessageKind::kWelcome:
      caller.OnWelcome(now, link, header, actions);
      break;
    case MessageKind::kRefused:
      caller.OnRefused(now, link, header, PeerUses(link), actions);
      break;
    default:
      caller.OnSessionEnded(now, link, header, actions);
      break;
  }
  NoteSent(now, actions, from);
  WakeBy(caller.NextWake());
  WakeBy(now + caller.talk_every());
  if (epoch == 0 || caller.state() == before) return;
  if (caller.peer_info().incarnation != incarnation) {
    ++probes_.callee_restarted;
  } else {
    ++(caller.epoch() == epoch ? probes_.resumed : probes_.session_ended);
  }
}

void WorkerSessions::OnHello(absl::Time now, LinkId link, LinkState& state, const Header& hello,
                             Actions& actions) {
  PeerInfo peer{hello.name, hello.incarnation};
  if (state.peer.incarnation != 0 && !(state.peer == peer)) {
    return CloseLink(now, link,
                     absl::InvalidArgumentError(absl::StrCat("a second worker, ", peer.name,
                                                             ", on the link of ", state.peer.name)),
                     actions);
  }
  HelloOutcome outcome;
  if (hello.protocol_version != kProtocolVersion) {
    outcome.kind = HelloOutcome::Kind::kRefused;
    outcome.status =
        WithRemedy(absl::FailedPreconditionError(absl::StrCat(
                       options_.self.name, " speaks version ", kProtocolVersion,
                       " of the protocol, ", peer.name, " version ", hello.protocol_version)),
                   "upgrade the older one");
  } else if ((peer.name == options_.self.name || IsSelf(peer)) &&
             state.origin != options_.self.name) {
    // Only the loopback, whose origin is this worker's name, may greet as this worker itself.
    outcome.kind = HelloOutcome::Kind::kRefused;
    outcome.status =
        WithRemedy(absl::AlreadyExistsError(absl::StrCat("the name or incarnation of ", peer.name,
                                                         " is this worker's own")),
                   "choose another name");
  } else {
    size_t from = actions.size();
    outcome = table_.OnHello(now, link, state.origin, hello, actions);
    for (size_t i = from; i < actions.size(); ++i) {
      const auto* ended = std::get_if<SessionEndedAction>(&actions[i]);
      probes_.takeover += ended != nullptr && ended->peer.incarnation != peer.incarnation;
    }
    AfterTableEvents(false, actions, from);
  }
  Answer(link, hello, outcome, actions);
  if (outcome.kind != HelloOutcome::Kind::kWelcome) return;
  if (state.peer.incarnation == 0) greeted_[peer.name].push_back(link);
  state.peer = std::move(peer);
  state.epoch = outcome.epoch;
  state.greet_by = absl::InfiniteFuture();
  if (state.caller == nullptr) state.caller = &CallerTo(hello.name);
  MoveTo(now, link, state, actions);
  const CalleeSession& session = *table_.Find(outcome.epoch);
  if (leaving_since_ != absl::InfiniteFuture()) TellLeaving(session, actions);
  WakeBy(session.lease_until());
}

// The peer has said hello on `link`. Moves our session on the peer to that link if it is better.
void WorkerSessions::MoveTo(absl::Time now, LinkId link, const LinkState& state, Actions& actions) {
  CallerSession& caller = *state.caller;
  // On the loopback both ends are ours, and only one of them calls.
  if (caller.link() == link || caller.peer() != state.peer.name ||
      state.peer.incarnation == options_.self.incarnation) {
    return;
  }
  probes_.dialled_both += caller.state() == CallerSession::State::kGreeting && !state.dialled;
  if (caller.link() == 0 || IsBetter(link, caller.link()) ||
      FaultOn("any_greeted_link_is_better")) {
    caller.OnLink(now, link, actions);
  }
}

void WorkerSessions::Answer(LinkId link, const Header& hello, const HelloOutcome& outcome,
                            Actions& actions) {
  Header answer;
  answer.name = options_.self.name;
  answer.incarnation = options_.self.incarnation;
  answer.protocol_version = kProtocolVersion;
  answer.sequence = hello.sequence;
  switch (outcome.kind) {
    case HelloOutcome::Kind::kStale:
      ++probes_.stale_hello;
      return;
    case HelloOutcome::Kind::kWelcome:
      answer.kind = MessageKind::kWelcome;
      answer.epoch = outcome.epoch;
      answer.timeout_us = static_cast<uint64_t>(absl::ToInt64Microseconds(options_.session.lease));
      answer.resumed = outcome.resumed;
      break;
    case HelloOutcome::Kind::kRefused:
      ++probes_.name_refused;
      answer.kind = MessageKind::kRefused;
      answer.status = outcome.status;
      break;
    case HelloOutcome::Kind::kLeaving:
      answer.kind = MessageKind::kLeaving;
      break;
  }
  SendControl(link, std::move(answer), actions);
}

// Tells our sessions on those peers whose own sessions here have ended. A takeover of a name
// appears here as the end of another incarnation's session.
void WorkerSessions::AfterTableEvents(bool left, Actions& actions, size_t from) {
  std::vector<std::string> gone;
  for (size_t i = from; i < actions.size(); ++i) {
    const auto* ended = std::get_if<SessionEndedAction>(&actions[i]);
    if (ended == nullptr) continue;
    gone.push_back(ended->peer.name);
  }
  for (const std::string& name : gone) {
    if (table_.FindByPeer(CallerTo(name).peer_info()) == nullptr)
      CallerTo(name).OnPeerGone(left, actions);
  }
}

void WorkerSessions::Refuse(LinkId link, const Header& message, Actions& actions) {
  ++probes_.fenced_request;
  Header ended;
  ended.kind = MessageKind::kSessionEnded;
  ended.epoch = message.epoch;
  ended.callee_incarnation = message.callee_incarnation;
  ended.name = options_.self.name;
  ended.incarnation = options_.self.incarnation;
  if (auto sender = links_.find(link); sender != links_.end())
    ended.status = table_.CheckFence(sender->second.peer);
  SendControl(link, std::move(ended), actions);
}

void WorkerSessions::OnAckMessage(absl::Time now, LinkId link, LinkState& state,
                                  const Header& header, Actions& actions) {
  if (header.epoch == 0) return;  // only a sign of life
  CalleeSession* session = table_.Find(header.epoch);
  if (session == nullptr || header.epoch != state.epoch ||
      header.callee_incarnation != options_.self.incarnation) {
    return Refuse(link, header, actions);
  }
  const bool honest = header.kind == MessageKind::kCancel
                          ? session->OnCancel(header.call_id, header.sequence, actions)
                          : session->OnAck(header.ack, actions);
  if (!honest) {
    // The session ends too: otherwise the peer could repeat this over a new link.
    size_t from = actions.size();
    table_.End(header.epoch, actions);
    AfterTableEvents(false, actions, from);
    return CloseLink(now, link,
                     absl::InvalidArgumentError("acknowledgements or cancels beyond all bounds"),
                     actions);
  }
  if (header.kind != MessageKind::kCancel) return session->OnCallsOver(header.call_id);
  Header cancelled;
  cancelled.kind = MessageKind::kCancelled;
  cancelled.call_id = header.call_id;
  SendControl(link, std::move(cancelled), actions);
}

void WorkerSessions::OnCancelled(absl::Time now, const LinkState& state, const Header& header,
                                 Actions& actions) {
  if (state.caller == nullptr) return;
  size_t from = actions.size();
  state.caller->OnCancelled(header.call_id, actions);
  NoteSent(now, actions, from);
}

void WorkerSessions::OnGoodbye(LinkState& state, const Header& header, Actions& actions) {
  if (header.callee_incarnation != options_.self.incarnation || header.epoch == 0 ||
      header.epoch != state.epoch) {
    return;
  }
  ++probes_.goodbye;
  size_t from = actions.size();
  table_.End(header.epoch, actions);
  for (size_t i = from; i < actions.size(); ++i) {
    if (auto* ended = std::get_if<SessionEndedAction>(&actions[i])) ended->goodbye = true;
  }
  AfterTableEvents(true, actions, from);
}

}  // namespace psd::rpc
