// WorkerSessions: the orderly stop of this worker (docs/decisions/0012-orderly-stop.md).

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/rpc/worker_sessions.h"

namespace psd::rpc {

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

bool WorkerSessions::Idle() const {
  const auto& sessions = table_.sessions();
  return std::all_of(sessions.begin(), sessions.end(),
                     [](const auto& each) { return each.second->running() == 0; });
}

bool WorkerSessions::Settled(absl::Time now) const {
  for (const auto& [name, caller] : callers_) {
    // Calls that are still pending after both sides have said goodbye were never sent; they wait
    // until the peer is started again.
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
