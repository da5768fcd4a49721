#include "server/services/gateway_sessions.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "core/base/ids.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/base/worker_name.h"

namespace psd::server {
namespace {

// The memory of a session without its calls, and of a context. Answers of the service are a few
// numbers, or an error with the names of a request, so a call takes as much as one between workers.
constexpr size_t kSessionBytes = 2048;
constexpr size_t kContextBytes = 2048;

absl::Status NoSession(GatewaySessions::SessionId id) {
  return WithRemedy(
      absl::AbortedError(absl::StrCat(
          "session ", IncarnationToString(id),
          " is not known here: its lease has ended, it was closed, or this worker was restarted; "
          "what was pending in it was not applied after that")),
      "open a new session");
}

absl::Status Ending(GatewaySessions::SessionId id) {
  return WithRemedy(absl::UnavailableError(absl::StrCat(
                        "session ", IncarnationToString(id),
                        " has ended, but a call of it is still being stopped or applied")),
                    "repeat this until it is ABORTED, then open a new session");
}

// The sessions have no links: each answer goes to the client that asked.
constexpr rpc::LinkId kNoLink = 0;

struct KeptAnswer : rpc::Opaque {
  explicit KeptAnswer(RememberedAnswer answer) : answer(std::move(answer)) {}
  const RememberedAnswer answer;
};

rpc::SessionOptions RulesOf(const GatewayOptions& options) {
  rpc::SessionOptions rules;
  rules.lease = options.lease;
  rules.max_unacknowledged_answers = options.max_unacknowledged_answers;
  rules.max_unacknowledged_bytes = options.max_unacknowledged_bytes;
  if (options.memory != nullptr) rules.memory = options.memory->transit();
  return rules;
}

// Returns the number of calls that run, given up or not, or whose answers are not acknowledged.
size_t Unacknowledged(const rpc::CalleeSession& calls) {
  return calls.running() + calls.remembered();
}

}  // namespace

GatewaySessions::GatewaySessions(const GatewayOptions& options)
    : options_(options), rules_(RulesOf(options)), shares_(options.max_sessions) {}

absl::Status GatewaySessions::Open(SessionId id, const std::string& client, const std::string& peer,
                                   absl::Time now) {
  PSD_RETURN_IF_ERROR(Annotate(CheckWorkerName(client), "client"));
  PSD_RETURN_IF_ERROR(shares_.Check(peer));
  PSD_ASSIGN_OR_RETURN(MemoryCharge charge, ChargeSession());
  shares_.Take(peer);
  Session& session = sessions_[id];
  session.calls = std::make_unique<rpc::CalleeSession>(rules_, rpc::PeerInfo{client, id}, id, peer,
                                                       now, std::move(charge), kOwnCalls);
  return absl::OkStatus();
}

absl::StatusOr<MemoryCharge> GatewaySessions::ChargeSession() const {
  if (options_.memory == nullptr) return MemoryCharge();
  return options_.memory->essential()->Charge(kSessionBytes +
                                              kOwnCalls * rpc::CalleeSession::kCallBytes);
}

absl::StatusOr<MemoryCharge> GatewaySessions::ChargeContext(const Session& session) const {
  if (options_.memory == nullptr) return MemoryCharge();
  const bool few = session.contexts.size() < kOwnCalls;
  const auto& account = few ? options_.memory->essential() : options_.memory->transit();
  return account->Charge(kContextBytes);
}

absl::Status GatewaySessions::Renew(SessionId id, absl::Time now) {
  auto it = sessions_.find(id);
  if (it == sessions_.end()) return NoSession(id);
  Session& session = it->second;
  // A lease whose time is over is not renewed, even if Expire has not seen it yet.
  if (session.ending || session.calls->lease_until() <= now)
    return session.calls->running() > 0 ? Ending(id) : NoSession(id);
  session.calls->OnHeard(now);
  return absl::OkStatus();
}

bool GatewaySessions::IsOpen(SessionId id) const {
  auto it = sessions_.find(id);
  return it != sessions_.end() && !it->second.ending;
}

std::string GatewaySessions::Client(SessionId id) const {
  return IsOpen(id) ? sessions_.find(id)->second.calls->caller().name : std::string();
}

std::optional<GatewaySessions::Ended> GatewaySessions::Close(SessionId id) {
  auto it = sessions_.find(id);
  if (it == sessions_.end() || it->second.ending) return std::nullopt;
  Session& session = it->second;
  Ended ended;
  ended.id = id;
  ended.client = session.calls->caller().name;
  for (const auto& [context, charge] : session.contexts) ended.contexts.push_back(context);
  session.contexts.clear();
  session.ending = true;
  // BeginApply refuses these calls, and the caller of Close stops those that wait
  rpc::Actions cancelled;
  session.calls->End(cancelled);
  if (session.calls->running() == 0) Remove(it);
  return ended;
}

std::vector<GatewaySessions::Ended> GatewaySessions::Expire(absl::Time now) {
  std::vector<SessionId> expired;
  for (const auto& [id, session] : sessions_) {
    if (!session.ending && session.calls->lease_until() <= now) expired.push_back(id);
  }
  std::vector<Ended> ended;
  ended.reserve(expired.size());
  for (SessionId id : expired) ended.push_back(*Close(id));
  return ended;
}

absl::StatusOr<GatewaySessions::Start> GatewaySessions::Begin(
    SessionId id, const Mutation& mutation, absl::Time now,
    absl::FunctionRef<absl::Status()> admit) {
  PSD_RETURN_IF_ERROR(Renew(id, now));
  Session& session = sessions_.find(id)->second;
  rpc::CalleeSession& calls = *session.calls;
  const uint64_t sequence = mutation.sequence;
  if (mutation.acknowledged >= sequence) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence ", sequence, " with acknowledged ", mutation.acknowledged,
        ": sequence numbers start at 1, and a call cannot acknowledge itself or a later one"));
  }
  rpc::RequestMeta meta;
  meta.call_id = sequence;
  meta.sequence = sequence;
  meta.epoch = id;
  meta.ack.watermark = mutation.acknowledged;
  meta.fingerprint = mutation.fingerprint;
  rpc::Actions actions;  // dropped objects are destroyed here
  calls.OnAck(meta.ack, actions);
  for (const rpc::Action& each : actions)
    session.given_up |= std::holds_alternative<rpc::CancelWorkAction>(each);
  if (!calls.Knows(sequence)) {
    PSD_RETURN_IF_ERROR(admit());
    PSD_RETURN_IF_ERROR(CheckRoom(calls));
  }
  switch (calls.OnRequest(kNoLink, meta, /*work=*/nullptr, actions)) {
    case rpc::RequestVerdict::kRun:
      return Start{true, {}};
    case rpc::RequestVerdict::kReplayed: {
      const auto& again = std::get<rpc::SendAnswerAction>(actions.back());
      return Start{false, static_cast<const KeptAnswer&>(*again.answer).answer};
    }
    case rpc::RequestVerdict::kRunning:
      return WithRemedy(absl::UnavailableError(absl::StrCat(mutation.method, " with sequence ",
                                                            sequence, " is being applied")),
                        "repeat it for its answer");
    case rpc::RequestVerdict::kStale:
      return WithRemedy(absl::InvalidArgumentError(absl::StrCat("sequence ", sequence,
                                                                " was acknowledged before (up to ",
                                                                calls.acknowledged_up_to(), ")")),
                        "take the next number");
    case rpc::RequestVerdict::kOther:
      return WithRemedy(
          absl::InvalidArgumentError(absl::StrCat("sequence ", sequence,
                                                  " is that of another request, and this ",
                                                  mutation.method, " was not applied")),
          "give every new request a number of its own, and repeat a request as it was");
    case rpc::RequestVerdict::kNoMemory:
      return calls.refusal();
    case rpc::RequestVerdict::kTooMany:    // only reads get this verdict
    case rpc::RequestVerdict::kViolation:  // only acknowledgements with gaps get this verdict
      break;
  }
  return absl::InternalError(absl::StrCat("sequence ", sequence, " breaks the rules of session ",
                                          IncarnationToString(id)));
}

absl::Status GatewaySessions::CheckRoom(rpc::CalleeSession& calls) const {
  if (Unacknowledged(calls) >= options_.max_unacknowledged_answers ||
      calls.remembered_bytes() >= options_.max_unacknowledged_bytes) {
    return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                          Unacknowledged(calls), " answers (", calls.remembered_bytes(),
                          " bytes) of this session are not acknowledged")),
                      "set `acknowledged` to the last sequence number whose answer has arrived");
  }
  return calls.CheckRoom();
}

bool GatewaySessions::TakeGivenUp(SessionId id) {
  auto it = sessions_.find(id);
  return it != sessions_.end() && std::exchange(it->second.given_up, false);
}

bool GatewaySessions::BeginApply(SessionId id, uint64_t sequence) {
  auto it = sessions_.find(id);
  return it != sessions_.end() && it->second.calls->BeginApply(sequence);
}

void GatewaySessions::Finish(SessionId id, uint64_t sequence, RememberedAnswer answer) {
  auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  size_t bytes = answer.reply.size() + answer.status.message().size();
  answer.status.ForEachPayload(
      [&bytes](absl::string_view, const absl::Cord& detail) { bytes += detail.size(); });
  rpc::Actions actions;  // dropped objects are destroyed here
  it->second.calls->OnReply(sequence, std::make_shared<KeptAnswer>(std::move(answer)), bytes,
                            /*gives=*/false, actions);
  if (it->second.ending && it->second.calls->running() == 0) Remove(it);
}

absl::Status GatewaySessions::AnswerOf(SessionId id, const absl::Status& status) const {
  auto it = sessions_.find(id);
  const bool still_runs =
      it != sessions_.end() && it->second.ending && it->second.calls->running() > 0;
  return absl::IsAborted(status) && still_runs ? Ending(id) : status;
}

void GatewaySessions::Remove(SessionMap::iterator session) {
  shares_.Release(session->second.calls->origin());
  sessions_.erase(session);
}

absl::Status GatewaySessions::AddContext(SessionId id, ContextId context) {
  if (!IsOpen(id)) return NoSession(id);
  auto it = sessions_.find(id);
  if (it->second.contexts.size() >= options_.max_contexts) {
    return WithRemedy(absl::ResourceExhaustedError(
                          absl::StrCat("this session holds ", options_.max_contexts, " contexts")),
                      "release those that are done");
  }
  PSD_ASSIGN_OR_RETURN(MemoryCharge charge, ChargeContext(it->second));
  it->second.contexts[context] = std::move(charge);
  return absl::OkStatus();
}

absl::Status GatewaySessions::JoinLife(SessionId id, const std::string& optimizer, GlobalId life) {
  if (!IsOpen(id)) return NoSession(id);
  Lives& lives = sessions_.find(id)->second.lives;
  if (lives.size() >= options_.max_optimizers && lives.count(optimizer) == 0) {
    return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                          "this session uses ", options_.max_optimizers, " optimizers already")),
                      "open another session for more");
  }
  lives[optimizer] = life;
  return absl::OkStatus();
}

GatewaySessions::Lives GatewaySessions::LivesOf(SessionId id) const {
  const auto session = sessions_.find(id);
  return session == sessions_.end() ? Lives() : session->second.lives;
}

void GatewaySessions::ForgetLives(SessionId id, const Lives& ended) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return;
  Lives& lives = session->second.lives;
  for (const auto& [optimizer, life] : ended) {
    const auto joined = lives.find(optimizer);
    if (joined == lives.end() || joined->second != life) continue;
    lives.erase(joined);
    session->second.forgot_lives = true;
  }
}

GlobalId GatewaySessions::LifeOf(SessionId id, const std::string& optimizer) const {
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return {};
  const auto life = session->second.lives.find(optimizer);
  if (life != session->second.lives.end()) return life->second;
  return session->second.forgot_lives ? GlobalId{id, 0} : GlobalId{};
}

absl::Status GatewaySessions::CheckContext(SessionId id, ContextId context) const {
  if (!IsOpen(id)) return NoSession(id);
  auto it = sessions_.find(id);
  if (it->second.contexts.contains(context)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("this session holds no context ", context,
                                          "; it was released, or belongs to another session"));
}

bool GatewaySessions::RemoveContext(SessionId id, ContextId context) {
  auto it = sessions_.find(id);
  return it != sessions_.end() && it->second.contexts.erase(context) != 0;
}

std::vector<GatewaySessions::Info> GatewaySessions::List(absl::Time now) const {
  std::vector<Info> infos;
  for (const auto& [id, session] : sessions_) {
    infos.push_back({id, session.calls->caller().name,
                     std::max(session.calls->lease_until() - now, absl::ZeroDuration()),
                     session.contexts.size(), Unacknowledged(*session.calls)});
  }
  std::sort(infos.begin(), infos.end(), [](const Info& a, const Info& b) {
    return std::tie(a.client, a.id) < std::tie(b.client, b.id);
  });
  return infos;
}

}  // namespace psd::server
