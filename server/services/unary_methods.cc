// UnaryService: the calls that read, and those that change named values, contexts and optimizers.

#include "server/services/unary_methods.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/ids.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/program/program.h"
#include "core/services/gradients/gradient_service.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/services/status/status_service.h"
#include "core/services/values/value_service.h"
#include "core/store/store.h"
#include "server/services/unary_codec.h"
#include "server/services/unary_service.h"

namespace psd::server {
namespace {

using store::EntryPtr;

constexpr uint32_t kMaxPage = 1000;
// The most bytes of one pull: protobuf's limit for a message, less room for the other fields.
constexpr size_t kMaxPullBytes = size_t{2'000} << 20;

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
  Mutate(call, kGetOrCreateParameter, request.header(), request, reply, [&](const Done& done) {
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
  Mutate(call, kDrop, request.header(), request, reply,
         [&](const Done& done) { done(runtime_.values().DropHere(request.name())); });
}

// ---- contexts and steps

void UnaryService::NewContext(UnaryCall& call, const v1::NewContextRequest& request,
                              v1::NewContextReply& reply) {
  Mutate(call, kNewContext, request.header(), request, reply, [&](const Done& done) {
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
  Mutate(call, kPushGradient, request.header(), request, reply,
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
