#include "core/rpc/worker_sessions.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/nearest_name.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::rpc {

WorkerSessions::WorkerSessions(Options options)
    : options_(std::move(options)),
      table_(options_.session, options_.self, options_.max_sessions),
      stalls_(options_.session.lease) {}

// ---------------------------------------------------------------- our calls

CallerSession& WorkerSessions::CallerTo(const std::string& name) {
  std::unique_ptr<CallerSession>& caller = callers_[name];
  if (caller == nullptr) {
    caller = std::make_unique<CallerSession>(options_.session, options_.self, name,
                                             options_.jitter_seed + callers_.size(), hellos_);
  }
  return *caller;
}

void WorkerSessions::AddPeer(const std::string& name, std::string address) {
  CallerTo(name).set_address(std::move(address));
}

CallId WorkerSessions::StartCall(absl::Time now, const std::string& peer, CallSpec spec,
                                 Actions& actions) {
  CallId id = next_call_++;
  auto caller = callers_.find(peer);
  if (caller == callers_.end()) {
    actions.push_back(CompleteAction{std::move(spec.body), UnknownPeer(peer), PeerInfo{peer, 0}});
    return id;
  }
  size_t from = actions.size();
  caller->second->Start(now, id, std::move(spec), actions);
  NoteSent(now, actions, from);
  WakeBy(caller->second->NextWake());
  return id;
}

absl::Status WorkerSessions::UnknownPeer(absl::string_view name) const {
  NearestNameFinder finder(name);
  for (const auto& [other, caller] : callers_)
    if (other != options_.self.name) finder.Consider(other);
  return absl::NotFoundError(absl::StrCat(options_.self.name, " knows no worker named \"", name,
                                          "\"", DidYouMean(finder.nearest())));
}

void WorkerSessions::CancelCall(const std::string& peer, CallId id, Actions& actions) {
  auto caller = callers_.find(peer);
  if (caller != callers_.end()) caller->second->Cancel(id, actions);
}

std::shared_ptr<Opaque> WorkerSessions::OnAnswer(absl::Time now, LinkId link, CallId id,
                                                 size_t bytes, Actions& actions) {
  LinkState* state = Heard(now, link);
  if (state == nullptr || state->caller == nullptr) return nullptr;
  size_t from = actions.size();
  std::shared_ptr<Opaque> body = state->caller->OnAnswer(id, bytes, actions);
  NoteSent(now, actions, from);
  return body;
}

void WorkerSessions::OnAnswerWithoutRoom(absl::Time now, LinkId link, CallId id,
                                         const absl::Status& why, Actions& actions) {
  LinkState* state = Heard(now, link);
  if (state == nullptr || state->caller == nullptr) return;
  const size_t from = actions.size();
  state->caller->OnAnswerWithoutRoom(id, why, actions);
  NoteSent(now, actions, from);
}

void WorkerSessions::OnSendRefused(const std::string& peer, CallId id, const absl::Status& status,
                                   Actions& actions) {
  auto caller = callers_.find(peer);
  if (caller != callers_.end()) caller->second->OnSendRefused(id, status, actions);
}

// ---------------------------------------------------------------- links

void WorkerSessions::OnDialed(absl::Time now, const std::string& peer, LinkId link,
                              Actions& actions) {
  CallerSession& caller = CallerTo(peer);
  if (caller.link() != 0) {
    // The peer's own link came first and works. Nothing has been sent on this one.
    actions.push_back(CloseLinkAction{link, absl::CancelledError("another link came first")});
    return;
  }
  LinkState state;
  state.dialled = true;
  state.origin = caller.address();
  state.caller = &caller;
  state.last_heard = state.last_sent = now;
  links_[link] = state;
  caller.OnLink(now, link, actions);
  WakeBy(now + options_.session.silence / 3);
}

void WorkerSessions::OnDialFailed(absl::Time now, const std::string& peer, bool refused,
                                  const absl::Status& status, Actions& actions) {
  probes_.refused_dial += refused;
  CallerSession& caller = CallerTo(peer);
  caller.OnDialFailed(now, refused, status, actions);
  WakeBy(caller.NextWake());
}

void WorkerSessions::OnAccepted(absl::Time now, LinkId link, std::string origin) {
  LinkState state;
  state.origin = std::move(origin);
  state.last_heard = state.last_sent = now;
  links_[link] = state;
  WakeBy(now + options_.session.silence / 3);
}

void WorkerSessions::OnLinkClosed(absl::Time now, LinkId link, Actions& actions) {
  auto found = links_.find(link);
  if (found == links_.end()) return;
  LinkState state = found->second;
  links_.erase(found);
  Detach(now, link, state, actions);
}

void WorkerSessions::CloseLink(absl::Time now, LinkId link, absl::Status reason, Actions& actions) {
  actions.push_back(CloseLinkAction{link, std::move(reason)});
  OnLinkClosed(now, link, actions);
}

// Handles the end of a link: its sessions move to another link between the two workers, or wait for
// a new one.
void WorkerSessions::Detach(absl::Time now, LinkId link, const LinkState& state, Actions& actions) {
  // A peer that has not greeted on this link may have done so on its own.
  LinkId other = BestLink(state.peer.incarnation != 0 || state.caller == nullptr
                              ? state.peer
                              : table_.HolderOf(state.caller->peer()));
  if (CalleeSession* callee = table_.Find(state.epoch);
      callee != nullptr && callee->link() == link) {
    callee->set_link(other);
    if (other == 0) callee->set_unlinked_at(now);
    // A peer that lives sends something every third of `silence`. Two thirds are enough here
    // because the carrier may close a silent link a little before this class does.
    if (other == 0 && now - state.last_heard >= options_.session.silence * 2 / 3) {
      callee->set_silent();
    }
  }
  if (leaving_since_ != absl::InfiniteFuture()) WakeBy(now + ReturnTime());
  if (state.caller == nullptr) return;
  if (state.caller->link() == link && other != 0) {
    state.caller->OnLink(now, other, actions);
  } else {
    state.caller->OnLinkClosed(now, link, actions);
  }
  WakeBy(state.caller->NextWake());
}

// Returns the best of the links on which the peer has said hello, or 0 if there is none.
LinkId WorkerSessions::BestLink(const PeerInfo& peer) const {
  LinkId best = 0;
  if (peer.incarnation == 0) return best;
  for (const auto& [link, state] : links_) {
    if (state.peer == peer && (best == 0 || IsBetter(link, best))) best = link;
  }
  return best;
}

// Requires: a peer has said hello on `link`; `than` leads to the same peer, or has ended.
bool WorkerSessions::IsBetter(LinkId link, LinkId than) const {
  const auto old = links_.find(than);
  if (old == links_.end()) return true;
  const LinkState& state = links_.at(link);
  const PeerInfo& peer = old->second.peer;
  // An earlier incarnation's links lead nowhere.
  if (peer.incarnation != 0 && !(peer == state.peer)) return true;
  if (state.dialled == old->second.dialled) return link > than;
  return state.dialled == (options_.self.name < state.peer.name);
}

PeerInfo WorkerSessions::PeerOf(LinkId link) const {
  auto found = links_.find(link);
  if (found == links_.end()) return PeerInfo{};
  const LinkState& state = found->second;
  // Answers may come before the peer's own hello. Its welcome has told who it is.
  if (state.peer.incarnation == 0 && state.caller != nullptr) return state.caller->peer_info();
  return state.peer;
}

WorkerSessions::LinkState* WorkerSessions::Heard(absl::Time now, LinkId link) {
  auto found = links_.find(link);
  if (found == links_.end()) return nullptr;
  found->second.last_heard = now;
  found->second.leniency.Restore();
  if (CalleeSession* callee = table_.Find(found->second.epoch)) callee->OnHeard(now);
  return &found->second;
}

void WorkerSessions::NoteSent(absl::Time now, const Actions& actions, size_t from) {
  for (size_t i = from; i < actions.size(); ++i) {
    const auto* send = std::get_if<SendRequestAction>(&actions[i]);
    if (send == nullptr) continue;
    auto link = links_.find(send->link);
    if (link != links_.end()) link->second.last_sent = now;
  }
}

// ---------------------------------------------------------------- control messages

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
      return;  // not control: they come through OnRequest and OnAnswer
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
      caller.OnRefused(now, link, header, actions);
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
  } else if (peer.name == options_.self.name && peer.incarnation != options_.self.incarnation) {
    outcome.kind = HelloOutcome::Kind::kRefused;
    outcome.status = WithRemedy(
        absl::AlreadyExistsError(absl::StrCat("the name ", peer.name, " is this worker's own")),
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
  state.peer = std::move(peer);
  state.epoch = outcome.epoch;
  if (state.caller == nullptr) state.caller = &CallerTo(hello.name);
  MoveTo(now, link, state, actions);
  const CalleeSession& session = *table_.Find(outcome.epoch);
  if (leaving_since_ != absl::InfiniteFuture()) TellLeaving(session, actions);
  WakeBy(session.lease_until());
}

// The peer has said hello on `link`. Moves our session on the peer there if that link is better.
void WorkerSessions::MoveTo(absl::Time now, LinkId link, const LinkState& state, Actions& actions) {
  CallerSession& caller = *state.caller;
  // On the loopback both ends are ours, and only one of them calls.
  if (caller.link() == link || caller.peer() != state.peer.name ||
      state.peer.incarnation == options_.self.incarnation) {
    return;
  }
  probes_.dialled_both += caller.state() == CallerSession::State::kGreeting && !state.dialled;
  if (caller.link() == 0 || IsBetter(link, caller.link())) caller.OnLink(now, link, actions);
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

// Tells our sessions on peers whose own sessions here have ended. A takeover of a name appears here
// as the end of another incarnation's session.
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
  if (header.kind != MessageKind::kCancel) return;
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
  AfterTableEvents(true, actions, from);
}

// ---------------------------------------------------------------- their calls

bool WorkerSessions::OnRequest(absl::Time now, LinkId link, const RequestMeta& meta,
                               std::shared_ptr<Opaque> work, Actions& actions) {
  LinkState* state = Heard(now, link);
  if (state == nullptr) return false;
  CalleeSession* session = table_.Find(meta.epoch);
  if (session == nullptr || meta.epoch != state->epoch ||
      meta.callee_incarnation != options_.self.incarnation) {
    Header refused;
    refused.epoch = meta.epoch;
    refused.callee_incarnation = meta.callee_incarnation;
    Refuse(link, refused, actions);
    return false;
  }
  switch (session->OnRequest(link, meta, std::move(work), actions)) {
    case RequestVerdict::kRun:
      WakeBy(meta.deadline);
      return true;
    case RequestVerdict::kRunning:
      ++probes_.joined_running;
      return false;
    case RequestVerdict::kReplayed:
      ++probes_.replayed;
      return false;
    case RequestVerdict::kStale:
      ++probes_.stale_dropped;
      return false;
    case RequestVerdict::kTooMany:
      RefuseRead(link, meta.call_id, session->caller(), actions);
      return false;
    case RequestVerdict::kViolation:
      CloseLink(now, link,
                absl::InvalidArgumentError(absl::StrCat("request ", meta.call_id, " (sequence ",
                                                        meta.sequence,
                                                        ") breaks the rules of its session")),
                actions);
      return false;
  }
  return false;
}

void WorkerSessions::RefuseRead(LinkId link, CallId call, const PeerInfo& caller,
                                Actions& actions) {
  ++probes_.read_refused;
  Header reply;
  reply.kind = MessageKind::kReply;
  reply.call_id = call;
  reply.status = WithDetail(
      absl::ResourceExhaustedError(absl::StrCat(
          options_.self.name, " runs ", options_.session.max_running_reads, " reads of ",
          caller.name, " already; wait for some of the answers, or raise max_running_reads there")),
      ErrorDetail{options_.self.name, "", "wait for some of the answers", false});
  SendControl(link, std::move(reply), actions);
}

bool WorkerSessions::BeginRun(uint64_t epoch, CallId id) {
  CalleeSession* session = table_.Find(epoch);
  return session != nullptr && session->BeginRun(id);
}

bool WorkerSessions::BeginApply(uint64_t epoch, CallId id) {
  CalleeSession* session = table_.Find(epoch);
  return session != nullptr && session->BeginApply(id);
}

LinkId WorkerSessions::OnReply(absl::Time now, uint64_t epoch, CallId id,
                               std::shared_ptr<Opaque> answer, size_t bytes, Actions& actions) {
  CalleeSession* session = table_.Find(epoch);
  if (session == nullptr) return 0;
  LinkId link = session->OnReply(id, std::move(answer), bytes, actions);
  auto found = links_.find(link);
  if (found == links_.end()) return 0;
  found->second.last_sent = now;
  return link;
}

void WorkerSessions::OnAnswerRefused(uint64_t epoch, uint64_t sequence,
                                     const std::shared_ptr<Opaque>& answer,
                                     std::shared_ptr<Opaque> error, size_t bytes,
                                     Actions& actions) {
  CalleeSession* session = table_.Find(epoch);
  if (session == nullptr) return;  // it took all that it held along
  session->OnAnswerRefused(sequence, answer, std::move(error), bytes, actions);
}

// ---------------------------------------------------------------- time

void WorkerSessions::Tick(absl::Time now, Actions& actions) {
  absl::Duration grace = stalls_.OnTick(now);
  if (grace > absl::ZeroDuration()) {
    ++probes_.stall_noticed;
    // Messages that came during the stall are still unread, so silence is counted from now.
    for (auto& [link, state] : links_) {
      if (state.leniency.Use()) state.last_heard = now;
    }
  }
  size_t from = actions.size();
  table_.Tick(now, grace, actions);
  for (size_t i = from; i < actions.size(); ++i) {
    probes_.lease_ended += std::holds_alternative<SessionEndedAction>(actions[i]);
  }
  AfterTableEvents(false, actions, from);
  ForgetStrangers();
  next_wake_ = now + stalls_.max_tick();
  KeepLinksAlive(now, actions);
  if (leaving_since_ != absl::InfiniteFuture()) TellAllLeaving(actions);
  from = actions.size();
  for (auto& [name, caller] : callers_) {
    caller->Tick(now, actions);
    WakeBy(caller->NextWake());
  }
  NoteSent(now, actions, from);
  WakeBy(table_.NextWake());
}

// Forgets peers that connected by themselves and are gone. Otherwise their number would only grow.
void WorkerSessions::ForgetStrangers() {
  absl::flat_hash_set<const CallerSession*> linked;
  for (const auto& [link, state] : links_) linked.insert(state.caller);
  for (auto caller = callers_.begin(); caller != callers_.end();) {
    auto next = std::next(caller);
    if (caller->second->Forgettable() && !linked.contains(caller->second.get())) {
      callers_.erase(caller);
    }
    caller = next;
  }
}

void WorkerSessions::KeepLinksAlive(absl::Time now, Actions& actions) {
  absl::Duration silence = options_.session.silence;
  std::vector<LinkId> silent;
  for (auto& [link, state] : links_) {
    if (now - state.last_heard >= silence) {
      silent.push_back(link);
      continue;
    }
    CallerSession* caller = state.caller;
    const bool open = caller != nullptr && caller->link() == link &&
                      caller->state() == CallerSession::State::kOpen;
    const absl::Duration talk_every = open ? caller->talk_every() : silence / 3;
    if (now - state.last_sent >= talk_every) {
      KeepAlive(link, open ? caller : nullptr, actions);
      state.last_sent = now;
    }
    WakeBy(std::min(state.last_sent + talk_every, state.last_heard + silence));
  }
  for (LinkId link : silent) {
    ++probes_.silence_noticed;
    CloseLink(
        now, link,
        absl::UnavailableError(absl::StrCat("nothing heard for ", absl::FormatDuration(silence))),
        actions);
  }
}

// Sends a message on the link: an acknowledgement if `caller` is our open session on the peer, else
// a keepalive.
void WorkerSessions::KeepAlive(LinkId link, CallerSession* caller, Actions& actions) {
  if (caller != nullptr) return caller->Announce(actions);
  Header ping;
  ping.kind = MessageKind::kKeepalive;
  SendControl(link, std::move(ping), actions);
}

// ---------------------------------------------------------------- leaving

// The time within which a living peer reconnects.
absl::Duration WorkerSessions::ReturnTime() const {
  return std::min(options_.session.silence, 10 * options_.session.reconnect_min);
}

void WorkerSessions::TellLeaving(const CalleeSession& session, Actions& actions) const {
  if (session.link() == 0 || IsSelf(session.caller())) return;
  Header leaving;
  leaving.kind = MessageKind::kLeaving;
  leaving.epoch = session.epoch();
  leaving.callee_incarnation = options_.self.incarnation;
  SendControl(session.link(), std::move(leaving), actions);
}

void WorkerSessions::TellLeft(const CalleeSession& session, Actions& actions) const {
  if (session.link() == 0 || IsSelf(session.caller())) return;
  Header left;
  left.kind = MessageKind::kLeft;
  left.epoch = session.epoch();
  left.callee_incarnation = options_.self.incarnation;
  left.ack = session.InDoubt();
  SendControl(session.link(), std::move(left), actions);
}

void WorkerSessions::BeginLeaving(absl::Time now, Actions& actions) {
  leaving_since_ = now;
  table_.BeginLeaving();
  TellAllLeaving(actions);
  WakeBy(now + ReturnTime());
}

// Called repeatedly: actions of several threads may overtake each other, and a peer that gets this
// message before its welcome ignores it.
void WorkerSessions::TellAllLeaving(Actions& actions) const {
  for (const auto& [epoch, session] : table_.sessions()) TellLeaving(*session, actions);
}

bool WorkerSessions::Settled(absl::Time now) const {
  for (const auto& [name, caller] : callers_) {
    // Calls that are left after both sides have said goodbye were not sent; they wait until the
    // peer is started again.
    if (caller->pending() == 0 || caller->state() == CallerSession::State::kLeft) continue;
    const absl::Time since = std::max(leaving_since_, caller->lost_at());
    const bool lost = caller->link() == 0 && (caller->unreachable() || now - since >= ReturnTime());
    if (!lost) return false;
  }
  for (const auto& [epoch, session] : table_.sessions()) {
    if (session->running() > 0) return false;
    if (IsSelf(session->caller())) continue;
    const absl::Time since = std::max(leaving_since_, session->unlinked_at());
    if (session->link() != 0 || (session->remembered() > 0 && now - since < ReturnTime()))
      return false;
  }
  return true;
}

void WorkerSessions::Leave(Actions& actions) {
  for (const auto& [epoch, session] : table_.sessions()) TellLeft(*session, actions);
  for (auto& [name, caller] : callers_) {
    caller->CompleteAll(
        absl::CancelledError(absl::StrCat("worker ", options_.self.name, " shuts down")), actions);
    if (caller->state() == CallerSession::State::kOpen) {
      Header goodbye;
      goodbye.kind = MessageKind::kGoodbye;
      goodbye.epoch = caller->epoch();
      goodbye.callee_incarnation = caller->peer_info().incarnation;
      SendControl(caller->link(), std::move(goodbye), actions);
    }
    caller->Forget();
  }
  std::vector<uint64_t> epochs;
  for (const auto& [epoch, session] : table_.sessions()) epochs.push_back(epoch);
  for (uint64_t epoch : epochs) table_.End(epoch, actions);
}

}  // namespace psd::rpc
