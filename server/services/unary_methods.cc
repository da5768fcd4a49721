// UnaryService: the calls that read, and those that change named values, contexts and optimizers.

#include "server/services/unary_methods.h"

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/ids.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/program/program.h"
#include "core/rpc/access.h"
#include "core/store/parameter.h"
#include "server/services/unary_codec.h"
#include "server/services/unary_service.h"

namespace psd::server {
namespace {

// The most bytes of one pull: protobuf's limit for a message, less room for the other fields.
constexpr size_t kMaxPullBytes = size_t{2'000} << 20;
constexpr int kMaxPulled = 100'000;  // values in one pull

// Returns the options of calls in which this service asks its own worker to create something. They
// have no timeout: a client would be told that a creation failed while it goes on.
rpc::CallOptions SelfCall() {
  rpc::CallOptions options;
  options.timeout = absl::ZeroDuration();
  return options;
}

// The time within which the other owners of an optimizer must say whether they have their parts. An
// owner that takes longer counts as unreachable.
rpc::CallOptions AskOwners() {
  rpc::CallOptions options;
  options.timeout = absl::Seconds(5);
  return options;
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

// `client` is the result of UnaryService::ClientOf; a client that only reads has no name. A session
// belongs to one client, so it needs no further number.
rpc::Asker AskerOf(const rpc::PeerInfo& client) {
  return {rpc::kAnonymous, client};
}

}  // namespace

// ---- reads

void UnaryService::List(UnaryCall& call, const v1::ListValuesRequest& request,
                        v1::ListValuesReply& reply) {
  const rpc::PeerInfo nobody;
  absl::StatusOr<services::Listing> page = uses_.values.ListHere(
      AskerOf(nobody), request.prefix(), request.page_token(), request.page_size());
  if (!page.ok()) return Answer(call, page.status());
  if (page->more) reply.set_next_page_token(page->values.back().name);
  for (services::ListedValue& value : page->values) {
    reply.add_names(std::move(value.name));
    reply.add_kinds(std::move(value.kind));
    reply.add_versions(value.version);
    reply.add_bytes(value.bytes);
  }
  AnswerLarge(call, reply);
}

void UnaryService::Pull(UnaryCall& call, const v1::PullRequest& request, v1::PullReply& reply) {
  Answer(call, PullInto(call, request, reply));
}

absl::Status UnaryService::PullInto(UnaryCall& call, const v1::PullRequest& request,
                                    v1::PullReply& reply) const {
  if (request.names_size() > kMaxPulled) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat("pull: ", request.names_size(),
                                                              " names, at most ", kMaxPulled)),
                      "pull fewer at a time");
  }
  const rpc::PeerInfo nobody;
  const std::vector<std::string> names(request.names().begin(), request.names().end());
  PSD_ASSIGN_OR_RETURN(const std::vector<store::PinnedVersion> pinned,
                       uses_.values.PinNamed(AskerOf(nobody), names));
  size_t bytes = 0;
  for (const store::PinnedVersion& version : pinned) bytes += version.tensor.NumBytes();
  if (bytes > kMaxPullBytes) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat("pull: ", bytes,
                                                              " bytes do not fit one reply "
                                                              "of ",
                                                              kMaxPullBytes)),
                      "pull fewer at a time");
  }
  // The reply holds a copy of each value for each time that it is named, and the network another
  // copy.
  PSD_RETURN_IF_ERROR(Charge(call, 2 * bytes));
  for (const store::PinnedVersion& version : pinned) {
    PSD_RETURN_IF_ERROR(EncodeTensor(version.tensor, *reply.add_tensors()));
    reply.add_versions(version.version);
  }
  return absl::OkStatus();
}

void UnaryService::Status(UnaryCall& call, const v1::StatusRequest& request,
                          v1::WorkerStatus& reply) {
  const rpc::PeerInfo nobody;
  absl::StatusOr<v1::WorkerStatus> status = uses_.status.CollectFor(AskerOf(nobody), request);
  if (!status.ok()) return Answer(call, status.status());
  reply = *std::move(status);
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
  AnswerLarge(call, reply);
}

// ---- named values

void UnaryService::GetOrCreateParameter(UnaryCall& call,
                                        const v1::GetOrCreateParameterRequest& request,
                                        v1::GetOrCreateParameterReply& reply) {
  Mutate(call, kGetOrCreateParameter, request.header(), request, reply, [&](const Done& done) {
    auto program = CreationProgram(request);
    if (!program.ok()) return done(program.status());
    const rpc::PeerInfo client = ClientOf(request.header().session());
    const absl::Status allowed =
        uses_.agent.access().Authorize(AskerOf(client), rpc::Right::kCreate, request.name());
    if (!allowed.ok()) return done(allowed);
    uses_.values
        .GetOrCreate(name(), request.name(), *program, /*requires_grad=*/true, SelfCall(),
                     services::ValueService::Hosted::kTensor, request.device())
        .OnReady([this, &reply, done](const absl::StatusOr<rref::RRef>& created) {
          if (!created.ok()) return done(created.status());
          // The name may have been dropped since, but the reference keeps its value.
          const auto version = uses_.values.VersionHere(*created);
          if (version.ok()) reply.set_version(*version);
          done(version.status());
        });
  });
}

void UnaryService::GetOrCreateOptimizer(UnaryCall& call,
                                        const v1::GetOrCreateOptimizerRequest& request,
                                        v1::GetOrCreateOptimizerReply& reply) {
  Mutate(call, kGetOrCreateOptimizer, request.header(), request, reply,
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
  const rpc::PeerInfo client = ClientOf(request.header().session());
  const absl::Status allowed =
      uses_.agent.access().Authorize(AskerOf(client), rpc::Right::kCreate, request.name());
  if (!allowed.ok()) return done(allowed);
  std::vector<rref::RRef> parameters;
  for (const std::string& name : request.parameters()) {
    auto parameter = uses_.values.LookupHere(AskerOf(client), rpc::Right::kStep, name);
    if (!parameter.ok()) return done(parameter.status());
    parameters.push_back(*std::move(parameter));
  }
  const GatewaySessions::SessionId session = request.header().session();
  uses_.optimizers.CheckHere(request.name(), AskOwners())
      .OnReady([this, &request, session, spec, parameters,
                done](const absl::StatusOr<Unit>& usable) {
        if (!usable.ok()) return done(usable.status());
        if (!BeginApply(session, request.header().sequence())) return done(WhyCancelled(session));
        uses_.optimizers.Create(name(), request.name(), {{spec, parameters}}, {}, SelfCall())
            .OnReady([this, &request, session, done](const absl::StatusOr<rref::RRef>& created) {
              // The optimizer was dropped while it was created. A client would take ABORTED for the
              // end of its session.
              if (absl::IsAborted(created.status())) return CreateOptimizer(request, done);
              if (!created.ok()) return done(created.status());
              // Takes the life of what was created, because its name may belong to another
              // optimizer by now.
              const auto life = uses_.optimizers.LifeHere(*created);
              if (!life.ok()) return done(life.status());
              done(JoinLife(session, request.name(), *life));
            });
      });
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
    each =
        uses_.optimizers.LivesHere(each->first, each->second) ? ended.erase(each) : std::next(each);
  MutexLock lock(mutex_);
  sessions_.ForgetLives(session, ended);
  return sessions_.JoinLife(session, optimizer, life);
}

void UnaryService::Drop(UnaryCall& call, const v1::DropRequest& request, v1::DropReply& reply) {
  Mutate(call, kDrop, request.header(), request, reply, [&](const Done& done) {
    const rpc::PeerInfo client = ClientOf(request.header().session());
    done(uses_.values.DropFor(AskerOf(client), request.name()));
  });
}

// ---- contexts and steps

void UnaryService::NewContext(UnaryCall& call, const v1::NewContextRequest& request,
                              v1::NewContextReply& reply) {
  Mutate(call, kNewContext, request.header(), request, reply, [&](const Done& done) {
    const GlobalId id = uses_.autograd.NewContext()->id();
    absl::Status held;
    {
      MutexLock lock(mutex_);
      held = sessions_.AddContext(request.header().session(), id.counter);
    }
    if (!held.ok()) uses_.autograd.Release(id);
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
  return uses_.autograd.Find({incarnation(), context});
}

void UnaryService::PushGradient(UnaryCall& call, const v1::PushGradientRequest& request,
                                v1::PushGradientReply& reply) {
  Mutate(call, kPushGradient, request.header(), request, reply,
         [&](const Done& done) { done(Accumulate(request)); });
}

absl::Status UnaryService::Accumulate(const v1::PushGradientRequest& request) {
  PSD_ASSIGN_OR_RETURN(auto context, FindContext(request.header().session(), request.context()));
  PSD_ASSIGN_OR_RETURN(Tensor gradient, DecodeTensor(request.gradient()));
  const rpc::PeerInfo client = ClientOf(request.header().session());
  return uses_.gradients.PushHere(AskerOf(client), *context, request.parameter(), request.version(),
                                  std::move(gradient));
}

void UnaryService::Step(UnaryCall& call, const v1::StepOptimizerRequest& request,
                        v1::StepOptimizerReply& reply) {
  Mutate(call, kStep, request.header(), request, reply,
         [&](const Done& done) { StartStep(request, &reply, done); });
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
  services::StepCall step;
  const rpc::PeerInfo client = ClientOf(header.session());
  optim::Member member{MemberSession(header.session()), "", {kSessionFlows, header.session()}};
  {
    MutexLock lock(mutex_);
    step.life = sessions_.LifeOf(header.session(), request.optimizer());
  }
  member.name = client.name;
  step.step = {header.session(), header.sequence()};
  step.contexts = {(*context)->id()};
  step.ended_before = header.acknowledged() + 1;
  uses_.optimizers.StepHere(
      AskerOf(client), request.optimizer(), step, std::move(member),
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
