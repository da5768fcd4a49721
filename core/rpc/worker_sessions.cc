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

// ---------------------------------------------------------------- calls of this worker

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
  // The peer's own link may exist already, if the peer had no place for this worker before. The
  // call waits for the peer's present answer.
  if (caller->second->NeedsPeersLink()) {
    if (const LinkId link = BestLink(table_.HolderOf(peer)); link != 0)
      caller->second->OnLink(now, link, actions);
  }
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

std::shared_ptr<Opaque> WorkerSessions::OnAnswer(absl::Time now, LinkId link,
                                                 const ReplyMeta& reply, size_t bytes,
                                                 Actions& actions) {
  LinkState* state = Heard(now, link);
  if (state == nullptr || state->caller == nullptr) return nullptr;
  size_t from = actions.size();
  std::shared_ptr<Opaque> body = state->caller->OnAnswer(reply, bytes, actions);
  NoteSent(now, actions, from);
  return body;
}

void WorkerSessions::OnAnswerWithoutRoom(absl::Time now, LinkId link, const ReplyMeta& reply,
                                         const absl::Status& why, Actions& actions) {
  LinkState* state = Heard(now, link);
  if (state == nullptr || state->caller == nullptr) return;
  const size_t from = actions.size();
  state->caller->OnAnswerWithoutRoom(reply, why, actions);
  NoteSent(now, actions, from);
}

void WorkerSessions::OnSendRefused(const std::string& peer, CallId id, const absl::Status& status,
                                   Actions& actions) {
  auto caller = callers_.find(peer);
  if (caller != callers_.end()) caller->second->OnSendRefused(id, status, actions);
}

// ---------------------------------------------------------------- calls of peers

const CalleeSession* WorkerSessions::OnRequest(absl::Time now, LinkId link, const RequestMeta& meta,
                                               std::shared_ptr<Opaque> work, Actions& actions) {
  LinkState* state = Heard(now, link);
  if (state == nullptr) return nullptr;
  CalleeSession* session = table_.Find(meta.epoch);
  if (session == nullptr || meta.epoch != state->epoch ||
      meta.callee_incarnation != options_.self.incarnation) {
    Header refused;
    refused.epoch = meta.epoch;
    refused.callee_incarnation = meta.callee_incarnation;
    Refuse(link, refused, actions);
    return nullptr;
  }
  switch (session->OnRequest(link, meta, std::move(work), actions)) {
    case RequestVerdict::kRun:
      WakeBy(meta.deadline);
      return session;
    case RequestVerdict::kRunning:
      ++probes_.joined_running;
      return nullptr;
    case RequestVerdict::kReplayed:
      ++probes_.replayed;
      return nullptr;
    case RequestVerdict::kStale:
      ++probes_.stale_dropped;
      return nullptr;
    case RequestVerdict::kTooMany:
      RefuseRead(link, meta.call_id, *session, actions);
      return nullptr;
    case RequestVerdict::kNoMemory:
      RefuseCall(link, meta.call_id, session->epoch(),
                 Annotate(session->refusal(), options_.self.name), actions);
      return nullptr;
    case RequestVerdict::kOther:
    case RequestVerdict::kViolation:
      CloseLink(now, link,
                absl::InvalidArgumentError(absl::StrCat("request ", meta.call_id, " (sequence ",
                                                        meta.sequence,
                                                        ") breaks the rules of its session")),
                actions);
      return nullptr;
  }
  return nullptr;
}

void WorkerSessions::RefuseRead(LinkId link, CallId call, const CalleeSession& session,
                                Actions& actions) {
  ++probes_.read_refused;
  RefuseCall(link, call, session.epoch(),
             WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                            options_.self.name, " runs ", options_.session.max_running_reads,
                            " reads of ", session.caller().name, " already")),
                        "wait for some of the answers, or raise max_running_reads there"),
             actions);
}

void WorkerSessions::RefuseCall(LinkId link, CallId call, uint64_t epoch, const absl::Status& why,
                                Actions& actions) {
  Header reply;
  reply.kind = MessageKind::kReply;
  reply.call_id = call;
  reply.epoch = epoch;
  reply.status =
      WithDetail(why, ErrorDetail{options_.self.name, "", "wait for some of the answers", false});
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

AnswerRoute WorkerSessions::OnReply(absl::Time now, uint64_t epoch, CallId id,
                                    std::shared_ptr<Opaque> answer, size_t bytes, bool gives,
                                    Actions& actions) {
  CalleeSession* session = table_.Find(epoch);
  if (session == nullptr) return {};
  const AnswerRoute route = session->OnReply(id, std::move(answer), bytes, gives, actions);
  auto found = links_.find(route.link);
  if (found == links_.end()) return {};
  found->second.last_sent = now;
  return route;
}

void WorkerSessions::OnAnswerRefused(uint64_t epoch, CallId id,
                                     const std::shared_ptr<Opaque>& answer, Actions& actions) {
  CalleeSession* session = table_.Find(epoch);
  if (session == nullptr) return;  // the session has ended, with all that it held
  session->OnAnswerRefused(id, answer, actions);
}

// ---------------------------------------------------------------- time

void WorkerSessions::Tick(absl::Time now, Actions& actions) {
  absl::Duration grace = stalls_.OnTick(now);
  if (grace > absl::ZeroDuration()) {
    ++probes_.stall_noticed;
    // Messages that came during the stall are still unread, so silence is counted from now.
    for (auto& [link, state] : links_) {
      if (!state.leniency.Use()) continue;
      state.last_heard = now;
      if (state.greet_by != absl::InfiniteFuture()) state.greet_by = now + options_.session.silence;
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

}  // namespace psd::rpc
