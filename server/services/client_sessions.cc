#include "server/services/client_sessions.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "core/base/ids.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/base/worker_name.h"

namespace psd::server {
namespace {

// The memory of a session and of a remembered call with its answer. Answers of the service are a
// few numbers, or an error with the names of a request.
constexpr size_t kSessionBytes = 2048;
constexpr size_t kCallBytes = 1024;
constexpr size_t kContextBytes = 2048;

absl::Status NoSession(ClientSessions::SessionId id) {
  return WithRemedy(
      absl::AbortedError(absl::StrCat(
          "session ", IncarnationToString(id),
          " is not known here: its lease has ended, it was closed, or this worker was restarted; "
          "what was pending in it was not applied after that")),
      "open a new session");
}

absl::Status Ending(ClientSessions::SessionId id) {
  return WithRemedy(absl::UnavailableError(absl::StrCat(
                        "session ", IncarnationToString(id),
                        " has ended, but a call of it is still being stopped or applied")),
                    "repeat this until it is ABORTED, then open a new session");
}

}  // namespace

absl::Status ClientSessions::Open(SessionId id, const std::string& client, const std::string& peer,
                                  absl::Time now) {
  PSD_RETURN_IF_ERROR(Annotate(CheckWorkerName(client), "client"));
  PSD_RETURN_IF_ERROR(refused_);
  PSD_RETURN_IF_ERROR(shares_.Check(peer));
  PSD_ASSIGN_OR_RETURN(MemoryCharge charge, ChargeSession());
  shares_.Take(peer);
  Session& session = sessions_[id];
  session.charge = std::move(charge);
  session.client = client;
  session.peer = peer;
  session.lease_end = now + options_.lease;
  return absl::OkStatus();
}

absl::StatusOr<MemoryCharge> ClientSessions::ChargeSession() const {
  if (options_.memory == nullptr) return MemoryCharge();
  return options_.memory->essential()->Charge(kSessionBytes);
}

absl::StatusOr<MemoryCharge> ClientSessions::ChargeCall(const Session& session,
                                                        const Mutation& mutation) const {
  if (options_.memory == nullptr) return MemoryCharge();
  const bool few = session.calls.size() < kOwnCalls;
  const auto& account = few ? options_.memory->essential() : options_.memory->transit();
  return account->Charge(kCallBytes + mutation.method.size() + mutation.fingerprint.size());
}

absl::StatusOr<MemoryCharge> ClientSessions::ChargeContext(const Session& session) const {
  if (options_.memory == nullptr) return MemoryCharge();
  const bool few = session.contexts.size() < kOwnCalls;
  const auto& account = few ? options_.memory->essential() : options_.memory->transit();
  return account->Charge(kContextBytes);
}

absl::Status ClientSessions::Renew(SessionId id, absl::Time now) {
  auto it = sessions_.find(id);
  if (it == sessions_.end()) return NoSession(id);
  Session& session = it->second;
  // A lease whose time is over is not renewed, even if Expire has not seen it yet.
  if (session.ending || session.lease_end <= now)
    return session.running > 0 ? Ending(id) : NoSession(id);
  session.lease_end = now + options_.lease;
  return absl::OkStatus();
}

bool ClientSessions::IsOpen(SessionId id) const {
  auto it = sessions_.find(id);
  return it != sessions_.end() && !it->second.ending;
}

std::string ClientSessions::Client(SessionId id) const {
  return IsOpen(id) ? sessions_.find(id)->second.client : std::string();
}

std::optional<ClientSessions::Ended> ClientSessions::Close(SessionId id) {
  auto it = sessions_.find(id);
  if (it == sessions_.end() || it->second.ending) return std::nullopt;
  Session& session = it->second;
  Ended ended;
  ended.id = id;
  ended.client = session.client;
  for (const auto& [context, charge] : session.contexts) ended.contexts.push_back(context);
  session.contexts.clear();
  session.ending = true;
  if (session.running == 0) Remove(it);
  return ended;
}

std::vector<ClientSessions::Ended> ClientSessions::Expire(absl::Time now) {
  std::vector<SessionId> expired;
  for (const auto& [id, session] : sessions_) {
    if (!session.ending && session.lease_end <= now) expired.push_back(id);
  }
  std::vector<Ended> ended;
  ended.reserve(expired.size());
  for (SessionId id : expired) ended.push_back(*Close(id));
  return ended;
}

void ClientSessions::Acknowledge(Session& session, uint64_t up_to) {
  if (up_to <= session.acknowledged) return;
  session.acknowledged = up_to;
  for (auto it = session.calls.begin(); it != session.calls.end() && it->first <= up_to;) {
    if (it->second.running) {  // given up by the client; Finish forgets it
      ++it;
      continue;
    }
    session.answer_bytes -= it->second.answer.reply.size();
    it = session.calls.erase(it);
  }
}

// Checks that a mutation with the sequence number of `call` repeats it.
absl::Status ClientSessions::CheckRepeated(const Call& call, const Mutation& mutation) {
  if (call.method != mutation.method) {
    return absl::InvalidArgumentError(absl::StrCat("sequence ", mutation.sequence, " is that of a ",
                                                   call.method, ", not of this ", mutation.method));
  }
  if (call.fingerprint != mutation.fingerprint) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          "sequence ", mutation.sequence, " is that of a ", call.method,
                          " with another request, and this one was not applied")),
                      "give every new request a number of its own, and repeat a request as it was");
  }
  if (!call.running) return absl::OkStatus();
  return WithRemedy(absl::UnavailableError(absl::StrCat(call.method, " with sequence ",
                                                        mutation.sequence, " is being applied")),
                    "repeat it for its answer");
}

absl::StatusOr<ClientSessions::Start> ClientSessions::Begin(SessionId id, Mutation mutation,
                                                            absl::Time now) {
  absl::Status renewed = Renew(id, now);
  if (!renewed.ok()) return renewed;
  Session& session = sessions_[id];
  const uint64_t sequence = mutation.sequence;
  if (mutation.acknowledged >= sequence) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence ", sequence, " with acknowledged ", mutation.acknowledged,
        ": sequence numbers start at 1, and a call cannot acknowledge itself or a later one"));
  }
  Acknowledge(session, mutation.acknowledged);
  if (sequence <= session.acknowledged) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat(
            "sequence ", sequence, " was acknowledged before (up to ", session.acknowledged, ")")),
        "take the next number");
  }
  auto known = session.calls.find(sequence);
  if (known != session.calls.end()) {
    absl::Status repeated = CheckRepeated(known->second, mutation);
    if (!repeated.ok()) return repeated;
    return Start{false, known->second.answer};
  }
  if (!refused_.ok()) return refused_;
  if (session.calls.size() >= options_.max_unacknowledged_answers ||
      session.answer_bytes >= options_.max_unacknowledged_bytes) {
    return WithRemedy(absl::ResourceExhaustedError(
                          absl::StrCat(session.calls.size(), " answers (", session.answer_bytes,
                                       " bytes) of this session are not acknowledged")),
                      "set `acknowledged` to the last sequence number whose answer has arrived");
  }
  PSD_ASSIGN_OR_RETURN(MemoryCharge charge, ChargeCall(session, mutation));
  Call& call = session.calls[sequence];
  call.charge = std::move(charge);
  call.method = std::string(mutation.method);
  call.fingerprint = std::move(mutation.fingerprint);
  ++session.running;
  return Start{true, {}};
}

void ClientSessions::Finish(SessionId id, uint64_t sequence, RememberedAnswer answer) {
  auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  Session& session = it->second;
  auto call = session.calls.find(sequence);
  if (call != session.calls.end() && call->second.running) {
    --session.running;
    if (sequence <= session.acknowledged) {
      session.calls.erase(call);
    } else {
      session.answer_bytes += answer.reply.size();
      call->second.running = false;
      call->second.answer = std::move(answer);
    }
  }
  if (session.ending && session.running == 0) Remove(it);
}

absl::Status ClientSessions::AnswerOf(SessionId id, const absl::Status& status) const {
  auto it = sessions_.find(id);
  const bool still_runs = it != sessions_.end() && it->second.ending && it->second.running > 0;
  return absl::IsAborted(status) && still_runs ? Ending(id) : status;
}

void ClientSessions::Remove(SessionMap::iterator session) {
  shares_.Release(session->second.peer);
  sessions_.erase(session);
}

absl::Status ClientSessions::AddContext(SessionId id, ContextId context) {
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

absl::Status ClientSessions::JoinLife(SessionId id, const std::string& optimizer, GlobalId life) {
  if (!IsOpen(id)) return NoSession(id);
  std::map<std::string, GlobalId>& lives = sessions_.find(id)->second.lives;
  if (lives.size() >= options_.max_optimizers && lives.count(optimizer) == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this session uses ", options_.max_optimizers,
                     " optimizers already; open another session for more"));
  }
  lives[optimizer] = life;
  return absl::OkStatus();
}

void ClientSessions::ForgetLife(SessionId id, const std::string& optimizer) {
  const auto session = sessions_.find(id);
  if (session != sessions_.end()) session->second.lives.erase(optimizer);
}

GlobalId ClientSessions::LifeOf(SessionId id, const std::string& optimizer) const {
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return {};
  const auto life = session->second.lives.find(optimizer);
  return life == session->second.lives.end() ? GlobalId{} : life->second;
}

absl::Status ClientSessions::CheckContext(SessionId id, ContextId context) const {
  if (!IsOpen(id)) return NoSession(id);
  auto it = sessions_.find(id);
  if (it->second.contexts.contains(context)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("this session holds no context ", context,
                                          "; it was released, or belongs to another session"));
}

bool ClientSessions::RemoveContext(SessionId id, ContextId context) {
  auto it = sessions_.find(id);
  return it != sessions_.end() && it->second.contexts.erase(context) != 0;
}

std::vector<ClientSessions::Info> ClientSessions::List(absl::Time now) const {
  std::vector<Info> infos;
  for (const auto& [id, session] : sessions_) {
    infos.push_back({id, session.client, std::max(session.lease_end - now, absl::ZeroDuration()),
                     session.contexts.size(), session.calls.size()});
  }
  std::sort(infos.begin(), infos.end(), [](const Info& a, const Info& b) {
    return std::tie(a.client, a.id) < std::tie(b.client, b.id);
  });
  return infos;
}

}  // namespace psd::server
