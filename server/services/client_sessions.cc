#include "server/services/client_sessions.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/worker_name.h"

namespace psd::server {
namespace {

absl::Status NoSession(ClientSessions::SessionId id) {
  return absl::AbortedError(absl::StrCat(
      "session ", IncarnationToString(id),
      " is not known here: its lease has ended, it was closed, or this worker was restarted; open "
      "a new session (what was pending in the old one was not applied after that)"));
}

}  // namespace

absl::Status ClientSessions::Open(SessionId id, const std::string& client, const std::string& peer,
                                  absl::Time now) {
  PSD_RETURN_IF_ERROR(Annotate(CheckWorkerName(client), "client"));
  PSD_RETURN_IF_ERROR(shares_.Check(peer));
  shares_.Take(peer);
  Session& session = sessions_[id];
  session.client = client;
  session.peer = peer;
  session.lease_end = now + options_.lease;
  return absl::OkStatus();
}

absl::Status ClientSessions::Renew(SessionId id, absl::Time now) {
  auto it = sessions_.find(id);
  // A lease that has ended is not revived, expired or not.
  if (it == sessions_.end() || it->second.lease_end <= now) return NoSession(id);
  it->second.lease_end = now + options_.lease;
  return absl::OkStatus();
}

std::vector<ClientSessions::ContextId> ClientSessions::Close(SessionId id) {
  auto it = sessions_.find(id);
  if (it == sessions_.end()) return {};
  std::vector<ContextId> contexts(it->second.contexts.begin(), it->second.contexts.end());
  shares_.Release(it->second.peer);
  sessions_.erase(it);
  return contexts;
}

std::vector<ClientSessions::Expired> ClientSessions::Expire(absl::Time now) {
  std::vector<Expired> expired;
  for (const auto& [id, session] : sessions_) {
    if (session.lease_end <= now) expired.push_back({id, session.client, {}});
  }
  for (Expired& ended : expired) ended.contexts = Close(ended.id);
  return expired;
}

void ClientSessions::Acknowledge(Session& session, uint64_t up_to) {
  if (up_to <= session.acknowledged) return;
  session.acknowledged = up_to;
  for (auto it = session.calls.begin(); it != session.calls.end() && it->first <= up_to;) {
    session.answer_bytes -= it->second.answer.reply.size();
    it = session.calls.erase(it);
  }
}

absl::StatusOr<ClientSessions::Start> ClientSessions::Begin(SessionId id, uint64_t sequence,
                                                            uint64_t acknowledged,
                                                            absl::string_view method,
                                                            absl::Time now) {
  absl::Status renewed = Renew(id, now);
  if (!renewed.ok()) return renewed;
  Session& session = sessions_[id];
  if (acknowledged >= sequence) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence ", sequence, " with acknowledged ", acknowledged,
        ": sequence numbers start at 1, and a call cannot acknowledge itself or a later one"));
  }
  Acknowledge(session, acknowledged);
  if (sequence <= session.acknowledged) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence ", sequence, " was acknowledged before (up to ",
                     session.acknowledged, "); take the next number"));
  }
  auto known = session.calls.find(sequence);
  if (known != session.calls.end()) {
    const Call& call = known->second;
    if (call.method != method) {
      return absl::InvalidArgumentError(absl::StrCat("sequence ", sequence, " is that of a ",
                                                     call.method, ", not of this ", method));
    }
    if (call.running) {
      return absl::UnavailableError(absl::StrCat(method, " with sequence ", sequence,
                                                 " is being applied; repeat it for its answer"));
    }
    return Start{false, call.answer};
  }
  if (session.calls.size() >= options_.max_unacknowledged_answers ||
      session.answer_bytes >= options_.max_unacknowledged_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        session.calls.size(), " answers (", session.answer_bytes,
        " bytes) of this session are not "
        "acknowledged; set `acknowledged` to the last sequence number whose answer has arrived"));
  }
  session.calls[sequence].method = std::string(method);
  return Start{true, {}};
}

void ClientSessions::Finish(SessionId id, uint64_t sequence, RememberedAnswer answer) {
  auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  auto call = it->second.calls.find(sequence);
  if (call == it->second.calls.end()) return;
  it->second.answer_bytes += answer.reply.size();
  call->second.running = false;
  call->second.answer = std::move(answer);
}

absl::Status ClientSessions::AddContext(SessionId id, ContextId context) {
  auto it = sessions_.find(id);
  if (it == sessions_.end()) return NoSession(id);
  if (it->second.contexts.size() >= options_.max_contexts) {
    return absl::ResourceExhaustedError(absl::StrCat("this session holds ", options_.max_contexts,
                                                     " contexts; release those that are done"));
  }
  it->second.contexts.insert(context);
  return absl::OkStatus();
}

absl::Status ClientSessions::CheckContext(SessionId id, ContextId context) const {
  auto it = sessions_.find(id);
  if (it == sessions_.end()) return NoSession(id);
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
