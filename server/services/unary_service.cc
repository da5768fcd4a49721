#include "server/services/unary_service.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/rpc/admission.h"
#include "server/services/request_fingerprint.h"
#include "server/services/unary_codec.h"
#include "server/services/unary_methods.h"

namespace psd::server {
namespace {

// Requests and replies up to this size are not charged: the executor's queue bounds them.
constexpr size_t kSmallBytes = size_t{4} << 10;

// Returns the session that a request names, or 0. Callers pass 0 for `preferred`, so that the
// overloads are tried in this order.
template <typename Request>
auto SessionOf(const Request& request, int /*preferred*/) -> decltype(request.header().session()) {
  return request.header().session();
}
template <typename Request>
auto SessionOf(const Request& request, int64_t /*preferred*/) -> decltype(request.session()) {
  return request.session();
}
template <typename Request>
uint64_t SessionOf(const Request& /*request*/, ...) {
  return 0;
}

}  // namespace

UnaryService::UnaryService(const Uses& uses, const GatewayOptions& options)
    : uses_(uses), options_(options), sessions_(options) {}

template <typename Request, typename Reply>
UnaryMethod<Request, Reply> UnaryService::Serving(
    const rpc::MethodInfo& info, typename UnaryMethod<Request, Reply>::Ask ask,
    void (UnaryService::*method)(UnaryCall&, const Request&, Reply&)) {
  const auto handle = [this, info, method](UnaryCall& call, const Request& request, Reply& reply) {
    const rpc::PeerInfo client = ClientOf(SessionOf(request, 0));
    const size_t bytes = request.ByteSizeLong();
    if (info.kind == rpc::MethodKind::kRead) {
      const absl::Status admitted = Admit(call, info, client, bytes);
      if (!admitted.ok()) return Answer(call, admitted);
    }
    const auto kind =
        info.runs_on == rpc::RunsOn::kUserQueue ? WorkLabel::Kind::kUser : WorkLabel::Kind::kOwn;
    absl::Status queued = uses_.executor.SubmitAs(
        {kind, FlowOf(client, call)},
        [this, method, &call, &request, &reply] { (this->*method)(call, request, reply); });
    if (!queued.ok()) Answer(call, Annotate(queued, name()));
  };
  const auto charge = [this](UnaryCall& call, size_t bytes) {
    return ToGrpcStatus(Charge(call, bytes), call.context());
  };
  // The client is known only when the request has been parsed.
  const auto elsewhere = [this](UnaryCall& call, Task task) {
    const absl::Status queued =
        uses_.executor.SubmitAs({WorkLabel::Kind::kOwn, FlowOf({}, call)}, std::move(task));
    return queued.ok() ? grpc::Status::OK : ToGrpcStatus(Annotate(queued, name()), call.context());
  };
  return {std::move(ask), charge, handle, elsewhere};
}

absl::Status UnaryService::Admit(UnaryCall& call, const rpc::MethodInfo& method,
                                 const rpc::PeerInfo& client, size_t bytes) const {
  return uses_.agent.admission().Admit({rpc::Entrance::kUnary, rpc::kAnonymous, client, call.peer(),
                                        method.name, method.kind, bytes});
}

rpc::PeerInfo UnaryService::ClientOf(GatewaySessions::SessionId session) const {
  MutexLock lock(mutex_);
  return {sessions_.Client(session), session};
}

FlowId UnaryService::FlowOf(const rpc::PeerInfo& client, UnaryCall& call) {
  if (!client.name.empty()) return {kSessionFlows, client.incarnation};
  const absl::string_view peer = call.peer();
  return {kHostFlows, absl::HashOf(peer.substr(0, peer.rfind(':')))};
}

absl::Status UnaryService::Charge(UnaryCall& call, size_t bytes) const {
  if (bytes <= kSmallBytes) return absl::OkStatus();
  absl::StatusOr<MemoryCharge> charge = uses_.memory.transit()->Charge(bytes);
  if (!charge.ok()) return Annotate(charge.status(), name());
  call.Hold(*std::move(charge));
  return absl::OkStatus();
}

void UnaryService::Answer(UnaryCall& call, const absl::Status& status) {
  call.Finish(ToGrpcStatus(status, call.context()));
}

void UnaryService::Serve(carrier::ServiceHost& host) {
  const auto serve = [&](auto ask, auto method, const rpc::MethodInfo& info) {
    ServeUnary(host, Serving(info, ask, method));
  };
  serve([this](auto... call) { service_.RequestOpenSession(call...); }, &UnaryService::OpenSession,
        kOpenSession);
  serve([this](auto... call) { service_.RequestRenewSession(call...); },
        &UnaryService::RenewSession, kRenewSession);
  serve([this](auto... call) { service_.RequestCloseSession(call...); },
        &UnaryService::CloseSession, kCloseSession);
  serve([this](auto... call) { service_.RequestList(call...); }, &UnaryService::List, kList);
  serve([this](auto... call) { service_.RequestPull(call...); }, &UnaryService::Pull, kPull);
  serve([this](auto... call) { service_.RequestStatus(call...); }, &UnaryService::Status, kStatus);
  serve([this](auto... call) { service_.RequestGetOrCreateParameter(call...); },
        &UnaryService::GetOrCreateParameter, kGetOrCreateParameter);
  serve([this](auto... call) { service_.RequestGetOrCreateOptimizer(call...); },
        &UnaryService::GetOrCreateOptimizer, kGetOrCreateOptimizer);
  serve([this](auto... call) { service_.RequestDrop(call...); }, &UnaryService::Drop, kDrop);
  serve([this](auto... call) { service_.RequestNewContext(call...); }, &UnaryService::NewContext,
        kNewContext);
  serve([this](auto... call) { service_.RequestReleaseContext(call...); },
        &UnaryService::ReleaseContext, kReleaseContext);
  serve([this](auto... call) { service_.RequestPushGradient(call...); },
        &UnaryService::PushGradient, kPushGradient);
  serve([this](auto... call) { service_.RequestStep(call...); }, &UnaryService::Step, kStep);
}

void UnaryService::Mutate(UnaryCall& call, const rpc::MethodInfo& method,
                          const v1::MutationHeader& header,
                          const google::protobuf::MessageLite& request,
                          google::protobuf::MessageLite& reply,
                          const std::function<void(Done)>& apply) {
  const GatewaySessions::SessionId session = header.session();
  const GatewaySessions::Mutation mutation{header.sequence(), header.acknowledged(), method.name,
                                           RequestFingerprint(method.name, request, header)};
  const size_t bytes = request.ByteSizeLong();
  call.peer();  // takes a lock of gRPC, which must not happen under the lock below
  absl::StatusOr<GatewaySessions::Start> start;
  bool given_up = false;
  {
    MutexLock lock(mutex_);
    start = sessions_.Begin(session, mutation, Now(), [&]() PSD_NO_THREAD_SAFETY_ANALYSIS {
      return Admit(call, method, {sessions_.Client(session), session}, bytes);
    });
    if (start.ok() && start->run) ++mutations_;
    given_up = sessions_.TakeGivenUp(session);
  }
  if (given_up) uses_.optimizers.GiveUp(MemberSession(session), header.acknowledged() + 1);
  if (!start.ok()) return Answer(call, start.status());
  if (!start->run) {
    if (!reply.ParseFromString(start->answer.reply))
      return Answer(call, absl::InternalError("a remembered answer cannot be read"));
    return Answer(call, start->answer.status);
  }
  const MutationId id{header.session(), header.sequence()};
  apply([this, &call, id, &reply](const absl::Status& status) {
    FinishMutation(call, id, reply, status);
  });
}

void UnaryService::FinishMutation(UnaryCall& call, const MutationId& id,
                                  const google::protobuf::MessageLite& reply,
                                  const absl::Status& status) {
  RememberedAnswer answer{ClipError(status), {}};
  if (status.ok()) answer.reply = reply.SerializeAsString();
  absl::Status said;
  {
    MutexLock lock(mutex_);
    sessions_.Finish(id.first, id.second, std::move(answer));
    said = sessions_.AnswerOf(id.first, status);
  }
  Answer(call, said);
  MutexLock lock(mutex_);
  if (--mutations_ == 0) answered_.NotifyAll();
}

void UnaryService::AwaitDrained(absl::Duration limit) {
  if (AwaitAnswers(limit)) return;
  std::vector<GatewaySessions::Ended> sessions;
  {
    MutexLock lock(mutex_);
    sessions = sessions_.CloseAll();
  }
  for (const GatewaySessions::Ended& session : sessions) Stop(session);
}

bool UnaryService::AwaitAnswers(absl::Duration limit) {
  const absl::Time until = Clock::Steady().Now() + limit;
  MutexLock lock(mutex_);
  while (mutations_ > 0) {
    const absl::Duration left = until - Clock::Steady().Now();
    if (left <= absl::ZeroDuration()) return false;
    answered_.WaitFor(mutex_, left);
  }
  return true;
}

void UnaryService::Stop(const GatewaySessions::Ended& ended) {
  uses_.optimizers.EndSession(MemberSession(ended.id));
  ReleaseContexts(ended.contexts);
}

// ---- sessions

void UnaryService::OpenSession(UnaryCall& call, const v1::OpenSessionRequest& request,
                               v1::OpenSessionReply& reply) {
  const GatewaySessions::SessionId id = NewIncarnation();
  bool arm = false;
  absl::Status opened = Admit(call, kOpenSession, {request.client(), id}, request.ByteSizeLong());
  if (!opened.ok()) return Answer(call, opened);
  {
    MutexLock lock(mutex_);
    opened = sessions_.Open(id, request.client(), call.peer(), Now());
    arm = opened.ok() && !std::exchange(timer_armed_, true);
  }
  if (!opened.ok()) return Answer(call, opened);
  if (arm) uses_.timers.RunAfter(options_.lease / 2, [this] { ExpireSessions(); });
  uses_.logger.Log(
      LogLevel::kInfo, "client_session_opened", absl::StrCat(request.client(), " opened a session"),
      {{"client", request.client()}, {"session", IncarnationToString(id)}, {"peer", call.peer()}});
  reply.set_session(id);
  reply.set_lease_ms(static_cast<uint64_t>(options_.lease / absl::Milliseconds(1)));
  reply.set_worker(name());
  reply.set_incarnation(incarnation());
  Answer(call, absl::OkStatus());
}

void UnaryService::RenewSession(UnaryCall& call, const v1::RenewSessionRequest& request,
                                v1::RenewSessionReply&) {
  absl::Status renewed;
  {
    MutexLock lock(mutex_);
    renewed = sessions_.Renew(request.session(), Now());
  }
  Answer(call, renewed);
}

void UnaryService::CloseSession(UnaryCall& call, const v1::CloseSessionRequest& request,
                                v1::CloseSessionReply&) {
  std::optional<GatewaySessions::Ended> ended;
  {
    MutexLock lock(mutex_);
    ended = sessions_.Close(request.session());
  }
  if (ended.has_value()) Stop(*ended);
  Answer(call, absl::OkStatus());
}

void UnaryService::ExpireSessions() {
  std::vector<GatewaySessions::Ended> expired;
  bool more = false;
  {
    MutexLock lock(mutex_);
    expired = sessions_.Expire(Now());
    more = timer_armed_ = sessions_.size() != 0;
  }
  for (const GatewaySessions::Ended& session : expired) {
    Stop(session);
    uses_.logger.Log(LogLevel::kInfo, "client_session_expired",
                     absl::StrCat("the lease of ", session.client, " has ended"),
                     {{"client", session.client},
                      {"session", IncarnationToString(session.id)},
                      {"contexts", session.contexts.size()}});
  }
  if (more) uses_.timers.RunAfter(options_.lease / 2, [this] { ExpireSessions(); });
}

void UnaryService::ReleaseContexts(const std::vector<GatewaySessions::ContextId>& contexts) {
  for (GatewaySessions::ContextId context : contexts)
    uses_.autograd.Release({incarnation(), context});
}

}  // namespace psd::server
