// WorkerSessions: the links between workers. Decides which of two links the sessions of two workers
// use, keeps links alive, and closes those that have fallen silent or on which no session has
// begun.

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/rpc/worker_sessions.h"

namespace psd::rpc {

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
  state.greet_by = now + options_.session.silence;
  links_[link] = state;
  WakeBy(now + options_.session.silence / 3);
}

void WorkerSessions::OnLinkClosed(absl::Time now, LinkId link, Actions& actions) {
  auto found = links_.find(link);
  if (found == links_.end()) return;
  LinkState state = found->second;
  links_.erase(found);
  if (const auto greeted = greeted_.find(state.peer.name); greeted != greeted_.end()) {
    std::vector<LinkId>& links = greeted->second;
    links.erase(std::remove(links.begin(), links.end(), link), links.end());
    if (links.empty()) greeted_.erase(greeted);
  }
  Detach(now, link, state, actions);
}

void WorkerSessions::CloseLink(absl::Time now, LinkId link, absl::Status reason, Actions& actions) {
  actions.push_back(CloseLinkAction{link, std::move(reason)});
  OnLinkClosed(now, link, actions);
}

// Handles the end of a link: its sessions move to another link between the two workers, or wait for
// a new one.
void WorkerSessions::Detach(absl::Time now, LinkId link, const LinkState& state, Actions& actions) {
  // A peer that has not greeted on this link may have greeted on a link of its own.
  LinkId other = BestLink(state.peer.incarnation != 0 || state.caller == nullptr
                              ? state.peer
                              : table_.HolderOf(state.caller->peer()));
  if (CalleeSession* callee = table_.Find(state.epoch);
      callee != nullptr && callee->link() == link) {
    callee->set_link(other);
    if (other == 0) callee->set_unlinked_at(now);
    // A living peer sends something every third of `silence`. Two thirds are enough here because
    // the carrier may close a silent link a little before this class does.
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
  const auto greeted = greeted_.find(peer.name);
  if (greeted == greeted_.end()) return best;
  for (const LinkId link : greeted->second) {
    if (links_.at(link).peer == peer && (best == 0 || IsBetter(link, best))) best = link;
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

bool WorkerSessions::PeerUses(LinkId link) {
  const CalleeSession* session = table_.Find(links_.at(link).epoch);
  return session != nullptr && session->link() == link;
}

PeerInfo WorkerSessions::PeerOf(LinkId link) const {
  auto found = links_.find(link);
  if (found == links_.end()) return PeerInfo{};
  const LinkState& state = found->second;
  // Answers may come before the peer's own hello. Its welcome has said who it is.
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

void WorkerSessions::KeepLinksAlive(absl::Time now, Actions& actions) {
  absl::Duration silence = options_.session.silence;
  const bool leaving = leaving_since_ != absl::InfiniteFuture();
  std::vector<LinkId> silent, sessionless;
  for (auto& [link, state] : links_) {
    if (now - state.last_heard >= silence) {
      silent.push_back(link);
      continue;
    }
    // A worker that is leaving begins no sessions, and its peers may wait for its end.
    const absl::Time greet_by = leaving ? absl::InfiniteFuture() : state.greet_by;
    if (now >= greet_by) {
      sessionless.push_back(link);
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
    WakeBy(std::min({state.last_sent + talk_every, state.last_heard + silence, greet_by}));
  }
  for (LinkId link : sessionless) {
    CloseLink(
        now, link,
        absl::UnavailableError(absl::StrCat(links_.at(link).origin, " began no session within ",
                                            absl::FormatDuration(silence))),
        actions);
  }
  for (LinkId link : silent) {
    ++probes_.silence_noticed;
    CloseLink(
        now, link,
        absl::UnavailableError(absl::StrCat("nothing heard for ", absl::FormatDuration(silence))),
        actions);
  }
}

// Sends a message on the link: an acknowledgement if `caller` is our open session on the peer,
// otherwise a keepalive.
void WorkerSessions::KeepAlive(LinkId link, CallerSession* caller, Actions& actions) {
  if (caller != nullptr) return caller->Announce(actions);
  Header ping;
  ping.kind = MessageKind::kKeepalive;
  SendControl(link, std::move(ping), actions);
}

}  // namespace psd::rpc
