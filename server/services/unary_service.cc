#include "server/services/unary_service.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/program/program.h"
#include "core/rpc/draining.h"
#include "core/services/gradients/gradient_service.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/services/status/status_service.h"
#include "core/services/values/value_service.h"
#include "core/store/store.h"
#include "server/services/request_fingerprint.h"
#include "server/services/unary_call.h"
#include "server/services/unary_codec.h"

namespace psd::server {
namespace {

using store::EntryPtr;

constexpr uint32_t kMaxPage = 1000;
// The most bytes of one pull: protobuf's limit for a message, less room for the other fields.
constexpr size_t kMaxPullBytes = size_t{2'000} << 20;
// Requests and replies up to this are not charged: the executor's queue bounds them.
constexpr size_t kSmallBytes = size_t{4} << 10;
// Returns the options of calls in which this service asks its own worker to create something. They
// have no timeout: a client would be told that a creation failed while it goes on.
rpc::CallOptions SelfCall() {
  rpc::CallOptions options;
  options.timeout = absl::ZeroDuration();
  return options;
}

// How long the other owners of an optimizer may take to say whether they have their parts. An owner
// that takes longer counts as one that cannot be reached.
rpc::CallOptions AskOwners() {
  rpc::CallOptions options;
  options.timeout = absl::Seconds(5);
  return options;
}

// Returns the id of a client's session for optimizers: that of a worker with a single session.
GlobalId MemberSession(GatewaySessions::SessionId session) {
  return {session, 1};
}

// FlowId::space of the clients of this service, beside the sessions of workers.
constexpr uint32_t kSessionFlows = rpc::kSessionFlows + 1;
constexpr uint32_t kHostFlows = rpc::kSessionFlows + 2;

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

absl::StatusOr<store::PinnedVersion> ReadTensor(const store::Entry& entry) {
  const auto* variable = entry.value.As<Variable>();
  if (variable != nullptr && variable->ok()) return store::PinnedVersion{variable->tensor(), 0};
  return absl::InvalidArgumentError(
      absl::StrCat(entry.Label(), " is ", entry.KindName(), ", not a tensor"));
}

// Reads the entries, in their order. All parameters are read at one moment between two steps.
absl::StatusOr<std::vector<store::PinnedVersion>> ReadTensors(
    const std::vector<EntryPtr>& entries) {
  std::vector<store::Parameter*> parameters;
  for (const EntryPtr& entry : entries) {
    if (entry->parameter != nullptr) parameters.push_back(entry->parameter.get());
  }
  PSD_ASSIGN_OR_RETURN(std::vector<store::PinnedVersion> pinned,
                       store::Parameter::PinAll(parameters));
  std::vector<store::PinnedVersion> tensors;
  size_t next = 0;
  for (const EntryPtr& entry : entries) {
    if (entry->parameter != nullptr) {
      tensors.push_back(std::move(pinned[next++]));
      continue;
    }
    PSD_ASSIGN_OR_RETURN(tensors.emplace_back(), ReadTensor(*entry));
  }
  return tensors;
}

absl::StatusOr<program::Program> CreationProgram(const v1::GetOrCreateParameterRequest& request) {
  PSD_ASSIGN_OR_RETURN(DType dtype, DecodeDataType(request.dtype()));
  PSD_ASSIGN_OR_RETURN(Shape shape, Shape::Checked(absl::MakeConstSpan(request.shape().data(),
                                                                       request.shape().size())));
  Attributes attributes;
  attributes["shape"] = std::vector<int64_t>(shape.extents().begin(), shape.extents().end());
  attributes["dtype"] = static_cast<int64_t>(dtype);
  std::string op = "zeros";
  switch (request.initializer()) {
    case v1::INITIALIZER_ZEROS:
      break;
    case v1::INITIALIZER_UNIFORM:
      op = "uniform";
      attributes["low"] = request.low();
      attributes["high"] = request.high();
      attributes["seed"] = static_cast<int64_t>(request.seed());
      break;
    default:
      return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                            "initializer ", static_cast<int>(request.initializer()), " is none")),
                        "see Initializer in service.proto");
  }
  program::ProgramBuilder builder;
  const auto result = builder.Call(op, {}, std::move(attributes));
  return builder.Build({result});
}

}  // namespace

UnaryService::UnaryService(worker::Runtime& runtime, const GatewayOptions& options)
    : runtime_(runtime), options_(options), sessions_(options) {}

template <typename Request, typename Reply>
UnaryMethod<Request, Reply> UnaryService::Serving(
    WorkLabel::Kind kind, typename UnaryMethod<Request, Reply>::Ask ask,
    void (UnaryService::*method)(UnaryCall&, const Request&, Reply&)) {
  const auto handle = [this, kind, method](UnaryCall& call, const Request& request, Reply& reply) {
    const absl::Status taken = Charge(call, request.ByteSizeLong());
    if (!taken.ok()) return Answer(call, taken);
    absl::Status queued = runtime_.executor().SubmitAs(
        {kind, FlowOf(SessionOf(request, 0), call)},
        [this, method, &call, &request, &reply] { (this->*method)(call, request, reply); });
    if (!queued.ok()) Answer(call, Annotate(queued, runtime_.name()));
  };
  return {std::move(ask), handle};
}

FlowId UnaryService::FlowOf(uint64_t session, UnaryCall& call) const {
  {
    MutexLock lock(mutex_);
    if (sessions_.IsOpen(session)) return {kSessionFlows, session};
  }
  const std::string peer = call.context().peer();  // "ipv4:10.0.0.5:41234"
  return {kHostFlows, absl::HashOf(absl::string_view(peer).substr(0, peer.rfind(':')))};
}

absl::Status UnaryService::Charge(UnaryCall& call, size_t bytes) const {
  if (bytes <= kSmallBytes) return absl::OkStatus();
  absl::StatusOr<MemoryCharge> charge = runtime_.memory().transit()->Charge(bytes);
  if (!charge.ok()) return Annotate(charge.status(), runtime_.name());
  call.Hold(*std::move(charge));
  return absl::OkStatus();
}

void UnaryService::Answer(UnaryCall& call, const absl::Status& status) {
  call.Finish(ToGrpcStatus(status, call.context()));
}

void UnaryService::Serve(carrier::ServiceHost& host) {
  const auto serve = [&](auto ask, auto method) {
    ServeUnary(host, Serving(WorkLabel::Kind::kOwn, ask, method));
  };
  const auto serve_user = [&](auto ask, auto method) {
    ServeUnary(host, Serving(WorkLabel::Kind::kUser, ask, method));
  };
  serve([this](auto... call) { service_.RequestOpenSession(call...); }, &UnaryService::OpenSession);
  serve([this](auto... call) { service_.RequestRenewSession(call...); },
        &UnaryService::RenewSession);
  serve([this](auto... call) { service_.RequestCloseSession(call...); },
        &UnaryService::CloseSession);
  serve([this](auto... call) { service_.RequestList(call...); }, &UnaryService::List);
  serve([this](auto... call) { service_.RequestPull(call...); }, &UnaryService::Pull);
  serve([this](auto... call) { service_.RequestStatus(call...); }, &UnaryService::Status);
  serve_user([this](auto... call) { service_.RequestGetOrCreateParameter(call...); },
             &UnaryService::GetOrCreateParameter);
  serve_user([this](auto... call) { service_.RequestGetOrCreateOptimizer(call...); },
             &UnaryService::GetOrCreateOptimizer);
  serve([this](auto... call) { service_.RequestDrop(call...); }, &UnaryService::Drop);
  serve([this](auto... call) { service_.RequestNewContext(call...); }, &UnaryService::NewContext);
  serve([this](auto... call) { service_.RequestReleaseContext(call...); },
        &UnaryService::ReleaseContext);
  serve([this](auto... call) { service_.RequestPushGradient(call...); },
        &UnaryService::PushGradient);
  serve([this](auto... call) { service_.RequestStep(call...); }, &UnaryService::Step);
}

template <typename Request, typename Reply>
void UnaryService::Mutate(UnaryCall& call, absl::string_view method, const Request& request,
                          Reply& reply, const std::function<void(Done)>& apply) {
  const v1::MutationHeader& header = request.header();
  const GatewaySessions::Mutation mutation{header.sequence(), header.acknowledged(), method,
                                           RequestFingerprint(method, request, header)};
  absl::StatusOr<GatewaySessions::Start> start;
  {
    MutexLock lock(mutex_);
    start = sessions_.Begin(header.session(), mutation, Now());
    if (start.ok() && start->run) ++mutations_;
  }
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

template <typename Reply>
void UnaryService::FinishMutation(UnaryCall& call, const MutationId& id, const Reply& reply,
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

void UnaryService::BeginDraining() {
  MutexLock lock(mutex_);
  sessions_.RefuseNew(rpc::DrainingError(runtime_.name(), "the call"));
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
  runtime_.optimizer_service().EndSession(MemberSession(ended.id));
  ReleaseContexts(ended.contexts);
}

// ---- sessions

void UnaryService::OpenSession(UnaryCall& call, const v1::OpenSessionRequest& request,
                               v1::OpenSessionReply& reply) {
  const GatewaySessions::SessionId id = NewIncarnation();
  bool arm = false;
  absl::Status opened;
  {
    MutexLock lock(mutex_);
    opened = sessions_.Open(id, request.client(), call.context().peer(), Now());
    arm = opened.ok() && !std::exchange(timer_armed_, true);
  }
  if (!opened.ok()) return Answer(call, opened);
  if (arm) runtime_.timers().RunAfter(options_.lease / 2, [this] { ExpireSessions(); });
  runtime_.logger().Log(LogLevel::kInfo, "client_session_opened",
                        absl::StrCat(request.client(), " opened a session"),
                        {{"client", request.client()},
                         {"session", IncarnationToString(id)},
                         {"peer", call.context().peer()}});
  reply.set_session(id);
  reply.set_lease_ms(static_cast<uint64_t>(options_.lease / absl::Milliseconds(1)));
  reply.set_worker(runtime_.name());
  reply.set_incarnation(runtime_.incarnation());
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
    runtime_.logger().Log(LogLevel::kInfo, "client_session_expired",
                          absl::StrCat("the lease of ", session.client, " has ended"),
                          {{"client", session.client},
                           {"session", IncarnationToString(session.id)},
                           {"contexts", session.contexts.size()}});
  }
  if (more) runtime_.timers().RunAfter(options_.lease / 2, [this] { ExpireSessions(); });
}

void UnaryService::ReleaseContexts(const std::vector<GatewaySessions::ContextId>& contexts) {
  for (GatewaySessions::ContextId context : contexts)
    runtime_.autograd().Release({runtime_.incarnation(), context});
}

// ---- reads

void UnaryService::List(UnaryCall& call, const v1::ListValuesRequest& request,
                        v1::ListValuesReply& reply) {
  const uint32_t wanted = request.page_size();
  const size_t page = wanted == 0 ? kMaxPage : std::min(wanted, kMaxPage);
  std::vector<EntryPtr> entries =
      runtime_.store().List(request.prefix(), request.page_token(), page + 1);
  const bool more = entries.size() > page;
  if (more) entries.resize(page);
  for (const EntryPtr& entry : entries) {
    reply.add_names(entry->name);
    reply.add_kinds(entry->KindName());
    reply.add_versions(entry->parameter == nullptr ? 0 : entry->parameter->version());
    reply.add_bytes(entry->parameter == nullptr ? 0 : entry->parameter->stats().bytes);
  }
  if (more) reply.set_next_page_token(entries.back()->name);
  Answer(call, absl::OkStatus());
}

void UnaryService::Pull(UnaryCall& call, const v1::PullRequest& request, v1::PullReply& reply) {
  Answer(call, PullInto(call, request, reply));
}

absl::Status UnaryService::PullInto(UnaryCall& call, const v1::PullRequest& request,
                                    v1::PullReply& reply) const {
  std::vector<EntryPtr> entries;
  for (const std::string& name : request.names()) {
    PSD_ASSIGN_OR_RETURN(EntryPtr entry, runtime_.store().Lookup(name));
    entries.push_back(std::move(entry));
  }
  PSD_ASSIGN_OR_RETURN(std::vector<store::PinnedVersion> pinned, ReadTensors(entries));
  size_t bytes = 0;
  for (const store::PinnedVersion& version : pinned) bytes += version.tensor.NumBytes();
  if (bytes > kMaxPullBytes) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat("pull: ", bytes,
                                                              " bytes do not fit one reply "
                                                              "of ",
                                                              kMaxPullBytes)),
                      "pull fewer at a time");
  }
  // The reply holds a copy of each, however often it is named, and the network another.
  PSD_RETURN_IF_ERROR(Charge(call, 2 * bytes));
  for (const store::PinnedVersion& version : pinned) {
    PSD_RETURN_IF_ERROR(EncodeTensor(version.tensor, *reply.add_tensors()));
    reply.add_versions(version.version);
  }
  return absl::OkStatus();
}

void UnaryService::Status(UnaryCall& call, const v1::StatusRequest& request,
                          v1::WorkerStatus& reply) {
  reply = runtime_.status().Collect(request);
  std::vector<GatewaySessions::Info> clients;
  {
    MutexLock lock(mutex_);
    clients = sessions_.List(Now());
  }
  for (const GatewaySessions::Info& client : clients) {
    v1::ClientSession& session = *reply.add_clients();
    session.set_client(client.client);
    session.set_session(client.id);
    session.set_lease_left_s(absl::ToDoubleSeconds(client.lease_left));
    session.set_contexts(client.contexts);
    session.set_answers_remembered(client.answers);
  }
  Answer(call, absl::OkStatus());
}

// ---- named values

void UnaryService::GetOrCreateParameter(UnaryCall& call,
                                        const v1::GetOrCreateParameterRequest& request,
                                        v1::GetOrCreateParameterReply& reply) {
  Mutate(call, "GetOrCreateParameter", request, reply, [&](const Done& done) {
    auto program = CreationProgram(request);
    if (!program.ok()) return done(program.status());
    runtime_.values()
        .GetOrCreate(runtime_.name(), request.name(), *program, /*requires_grad=*/true, SelfCall())
        .OnReady([&reply, done](const absl::StatusOr<rref::RRef>& created) {
          if (!created.ok()) return done(created.status());
          // The name may have been dropped since, but the reference keeps its value.
          auto entry = created->local_entry();
          if (!entry.ok()) return done(entry.status());
          reply.set_version((*entry)->parameter == nullptr ? 0 : (*entry)->parameter->version());
          done(absl::OkStatus());
        });
  });
}

void UnaryService::GetOrCreateOptimizer(UnaryCall& call,
                                        const v1::GetOrCreateOptimizerRequest& request,
                                        v1::GetOrCreateOptimizerReply& reply) {
  Mutate(call, "GetOrCreateOptimizer", request, reply,
         [&](const Done& done) { CreateOptimizer(request, done); });
}

void UnaryService::CreateOptimizer(const v1::GetOrCreateOptimizerRequest& request,
                                   const Done& done) {
  if (request.name().empty())
    return done(absl::InvalidArgumentError("optimizer: the name is missing"));
  if (request.option_names_size() != request.option_values_size()) {
    return done(absl::InvalidArgumentError(absl::StrCat("optimizer: ", request.option_names_size(),
                                                        " option names and ",
                                                        request.option_values_size(), " values")));
  }
  optim::OptimizerSpec spec;
  spec.type = request.type();
  for (int i = 0; i < request.option_names_size(); ++i)
    spec.options[request.option_names(i)] = request.option_values(i);
  std::vector<rref::RRef> parameters;
  for (const std::string& name : request.parameters()) {
    auto entry = runtime_.store().Lookup(name);
    if (!entry.ok()) return done(entry.status());
    parameters.push_back(runtime_.rrefs().LocalRRef(*entry));
  }
  services::OptimizerService& service = runtime_.optimizer_service();
  const std::string& name = request.name();
  const GatewaySessions::SessionId session = request.header().session();
  service.CheckHere(name, AskOwners())
      .OnReady([this, &request, &service, name, session, spec, parameters,
                done](const absl::StatusOr<Unit>& usable) {
        if (!usable.ok()) return done(usable.status());
        if (!BeginApply(session, request.header().sequence())) return done(WhyCancelled(session));
        service.Create(runtime_.name(), name, {{spec, parameters}}, {}, SelfCall())
            .OnReady([this, &request, &service, name, session,
                      done](const absl::StatusOr<rref::RRef>& created) {
              // It was dropped while it was created. To a client, ABORTED would be the end of
              // its session.
              if (absl::IsAborted(created.status())) return CreateOptimizer(request, done);
              if (!created.ok()) return done(created.status());
              // The life of what was created: its name may be another optimizer's by now.
              const auto entry = created->local_entry();
              if (!entry.ok()) return done(entry.status());
              const GlobalId life = optim::OptimizerOf(**entry)->life().id;
              done(JoinLife(session, name, life));
            });
      });
}

bool UnaryService::IsLive(const std::string& optimizer, GlobalId life) const {
  const auto entry = runtime_.store().Lookup(optimizer);
  const auto hosted = entry.ok() ? optim::OptimizerOf(**entry) : nullptr;
  return hosted != nullptr && optim::CheckLife(life, hosted->life()).ok();
}

absl::Status UnaryService::JoinLife(GatewaySessions::SessionId session,
                                    const std::string& optimizer, GlobalId life) {
  GatewaySessions::Lives ended;
  {
    MutexLock lock(mutex_);
    absl::Status joined = sessions_.JoinLife(session, optimizer, life);
    if (!absl::IsResourceExhausted(joined)) return joined;
    ended = sessions_.LivesOf(session);
  }
  for (auto each = ended.begin(); each != ended.end();)
    each = IsLive(each->first, each->second) ? ended.erase(each) : std::next(each);
  MutexLock lock(mutex_);
  sessions_.ForgetLives(session, ended);
  return sessions_.JoinLife(session, optimizer, life);
}

void UnaryService::Drop(UnaryCall& call, const v1::DropRequest& request, v1::DropReply& reply) {
  Mutate(call, "Drop", request, reply,
         [&](const Done& done) { done(runtime_.values().DropHere(request.name())); });
}

// ---- contexts and steps

void UnaryService::NewContext(UnaryCall& call, const v1::NewContextRequest& request,
                              v1::NewContextReply& reply) {
  Mutate(call, "NewContext", request, reply, [&](const Done& done) {
    const GlobalId id = runtime_.autograd().NewContext()->id();
    absl::Status held;
    {
      MutexLock lock(mutex_);
      held = sessions_.AddContext(request.header().session(), id.counter);
    }
    if (!held.ok()) runtime_.autograd().Release(id);
    reply.set_context(id.counter);
    done(held);
  });
}

void UnaryService::ReleaseContext(UnaryCall& call, const v1::ReleaseContextRequest& request,
                                  v1::ReleaseContextReply&) {
  absl::Status renewed;
  bool held = false;
  {
    MutexLock lock(mutex_);
    renewed = sessions_.Renew(request.session(), Now());
    held = renewed.ok() && sessions_.RemoveContext(request.session(), request.context());
  }
  if (held) ReleaseContexts({request.context()});
  Answer(call, renewed);
}

absl::StatusOr<std::shared_ptr<dist_autograd::ContextState>> UnaryService::FindContext(
    uint64_t session, uint64_t context) const {
  {
    MutexLock lock(mutex_);
    PSD_RETURN_IF_ERROR(sessions_.CheckContext(session, context));
  }
  return runtime_.autograd().Find({runtime_.incarnation(), context});
}

void UnaryService::PushGradient(UnaryCall& call, const v1::PushGradientRequest& request,
                                v1::PushGradientReply& reply) {
  Mutate(call, "PushGradient", request, reply,
         [&](const Done& done) { done(Accumulate(request)); });
}

absl::Status UnaryService::Accumulate(const v1::PushGradientRequest& request) {
  PSD_ASSIGN_OR_RETURN(auto context, FindContext(request.header().session(), request.context()));
  PSD_ASSIGN_OR_RETURN(EntryPtr entry, runtime_.store().Lookup(request.parameter()));
  PSD_ASSIGN_OR_RETURN(Tensor gradient, DecodeTensor(request.gradient()));
  return services::AddGradient(*context, *entry, request.version(), std::move(gradient));
}

void UnaryService::Step(UnaryCall& call, const v1::StepOptimizerRequest& request,
                        v1::StepOptimizerReply& reply) {
  Mutate(call, "Step", request, reply, [&](const Done& done) { StartStep(request, &reply, done); });
}

bool UnaryService::BeginApply(GatewaySessions::SessionId session, uint64_t sequence) {
  MutexLock lock(mutex_);
  return sessions_.BeginApply(session, sequence);
}

absl::Status UnaryService::WhyCancelled(GatewaySessions::SessionId session) const {
  MutexLock lock(mutex_);
  if (!sessions_.IsOpen(session))
    return absl::AbortedError("the client's session has ended; the call was not applied");
  return WithRemedy(absl::CancelledError("the client has acknowledged the call before its answer, "
                                         "so it was given up and not applied"),
                    "set `acknowledged` to the last sequence number whose answer has arrived");
}

void UnaryService::StartStep(const v1::StepOptimizerRequest& request, v1::StepOptimizerReply* reply,
                             const Done& done) {
  const v1::MutationHeader& header = request.header();
  auto context = FindContext(header.session(), request.context());
  if (!context.ok()) return done(context.status());
  auto optimizer = runtime_.store().Lookup(request.optimizer());
  if (!optimizer.ok()) return done(optimizer.status());
  services::StepCall step;
  optim::Member member{MemberSession(header.session()), "", {kSessionFlows, header.session()}};
  {
    MutexLock lock(mutex_);
    member.name = sessions_.Client(header.session());
    step.life = sessions_.LifeOf(header.session(), request.optimizer());
  }
  step.step = {header.session(), header.sequence()};
  step.contexts = {(*context)->id()};
  step.ended_before = header.acknowledged() + 1;
  runtime_.optimizer_service().StepHere(
      **optimizer, step, std::move(member),
      [this, session = header.session(), sequence = header.sequence()] {
        return BeginApply(session, sequence);
      },
      [this, session = header.session(), reply,
       done](const absl::StatusOr<optim::StepResult>& result) {
        if (absl::IsCancelled(result.status())) return done(WhyCancelled(session));
        if (!result.ok()) return done(result.status());
        reply->set_steps_accepted(result->steps_accepted);
        reply->set_parameters_stepped(static_cast<uint32_t>(result->parameters_stepped));
        reply->set_max_staleness(result->max_staleness);
        done(absl::OkStatus());
      });
}

}  // namespace psd::server
