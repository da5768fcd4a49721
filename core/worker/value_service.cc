#include "core/worker/value_service.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <variant>

#include "core/program/program_codec.h"
#include "core/worker/runtime.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::worker {
namespace {

using rref::RRef;
using store::EntryPtr;
using store::Value;

constexpr size_t kMaxListPage = 1000;

// Whether `parameter` is what a creation program of one operator would make; programs of several
// are believed.
bool WouldMake(const OperatorRegistry& operators, const program::Program& program,
               const store::Parameter& parameter) {
  if (program.num_inputs != 0 || program.instructions.size() != 1) return true;
  const program::Instruction& creation = program.instructions[0];
  auto shape = operators.OutputShape(creation.op, {}, creation.attributes);
  if (!shape.ok()) return true;
  auto stated = creation.attributes.find("dtype");
  const int64_t* number =
      stated == creation.attributes.end() ? nullptr : std::get_if<int64_t>(&stated->second);
  int64_t dtype = number == nullptr ? static_cast<int64_t>(DType::kF32) : *number;
  return parameter.shape() == *shape && static_cast<int64_t>(parameter.dtype()) == dtype;
}

absl::Status CheckSameType(const OperatorRegistry& operators, const store::Entry& entry,
                           const program::Program& program, bool requires_grad) {
  if (entry.parameter == nullptr) return absl::OkStatus();
  const store::Parameter& parameter = *entry.parameter;
  if (parameter.requires_grad() == requires_grad && WouldMake(operators, program, parameter)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "'", entry.name, "' exists as ", entry.KindName(),
      parameter.requires_grad() ? " that requires grad" : " that requires no grad",
      ", which is not what this call would create; drop it, or use another name"));
}

// Runs a creation program: no arguments, one result, no history.
absl::StatusOr<Value> RunCreation(Runtime& runtime, const program::Program& program) {
  NoGradGuard no_grad;
  PSD_ASSIGN_OR_RETURN(auto results,
                       program::RunProgram(program, runtime.operators(),
                                           runtime.options().program_limits, {},
                                           [] { return false; }));
  if (results.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a creation program must have one result, this one has ", results.size()));
  }
  return Value(results[0].Detach());
}

GlobalId IdAt(const v1::FetchRequest& request, int i) {
  return {request.incarnations(i), request.counters(i)};
}

// Entries of all `ids`. Errors: INVALID_ARGUMENT, NOT_FOUND naming the id.
absl::StatusOr<std::vector<EntryPtr>> FindAll(store::Store& store,
                                              const v1::FetchRequest& request) {
  if (request.incarnations_size() != request.counters_size()) {
    return absl::InvalidArgumentError(absl::StrCat("value.fetch: ", request.incarnations_size(),
                                                   " incarnations, but ", request.counters_size(),
                                                   " counters"));
  }
  std::vector<EntryPtr> entries;
  entries.reserve(request.counters_size());
  for (int i = 0; i < request.counters_size(); ++i) {
    PSD_ASSIGN_OR_RETURN(EntryPtr entry, store.Get(IdAt(request, i)));
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace

rpc::Payload ReferenceReply(Runtime& runtime, const rpc::ServerCall& call, const EntryPtr& entry) {
  rref::ForkData data = runtime.rrefs().ForkFor(entry, call.caller(), call.session_epoch());
  v1::ReferenceReply reply;
  reply.set_value_incarnation(data.value.incarnation);
  reply.set_value_counter(data.value.counter);
  reply.set_fork_incarnation(data.fork.incarnation);
  reply.set_fork_counter(data.fork.counter);
  reply.set_name(data.name);
  return PlainPayload(reply);
}

absl::StatusOr<RRef> AdoptReference(Runtime& runtime, const std::string& owner,
                                    const rpc::Reply& reply) {
  PSD_ASSIGN_OR_RETURN(auto message,
                       ParseMessage<v1::ReferenceReply>(reply.payload.header, "a reference"));
  rref::ForkData data;
  data.owner = owner;
  data.owner_incarnation = reply.callee.incarnation;
  data.value = {message.value_incarnation(), message.value_counter()};
  data.fork = {message.fork_incarnation(), message.fork_counter()};
  data.parent = owner;
  data.name = message.name();
  return runtime.rrefs().AdoptFork(data);
}

ValueService::ValueService(Runtime& runtime) : runtime_(runtime) {
  auto add = [&](const char* name, rpc::MethodKind kind, rpc::RunsOn runs_on,
                 void (ValueService::*serve)(const CallPtr&)) {
    runtime_.RegisterMethod({name, kind, runs_on, [this, serve](CallPtr call) {
                               (this->*serve)(call);
                             }});
  };
  using rpc::MethodKind;
  using rpc::RunsOn;
  add("value.get_or_create", MethodKind::kMutation, RunsOn::kExecutor,
      &ValueService::ServeGetOrCreate);
  add("value.lookup", MethodKind::kMutation, RunsOn::kCarrierThread, &ValueService::ServeLookup);
  add("value.drop", MethodKind::kMutation, RunsOn::kCarrierThread, &ValueService::ServeDrop);
  add("value.fetch", MethodKind::kRead, RunsOn::kCarrierThread, &ValueService::ServeFetch);
  add("value.assign", MethodKind::kMutation, RunsOn::kExecutor, &ValueService::ServeAssign);
  add("value.list", MethodKind::kRead, RunsOn::kCarrierThread, &ValueService::ServeList);
  add("gradient.fetch", MethodKind::kRead, RunsOn::kCarrierThread, &ValueService::ServeGradient);
}

// ---- callee

void ValueService::ServeGetOrCreate(const CallPtr& call) {
  auto request = ParseMessage<v1::GetOrCreateRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto decoded = program::DecodeProgram(request->program(), runtime_.options().program_limits);
  if (!decoded.ok()) return call->Reply(decoded.status());
  absl::Status checked = program::CheckProgram(*decoded, runtime_.operators(),
                                               runtime_.options().program_limits);
  if (!checked.ok()) return call->Reply(checked);
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before creation"));
  auto program = std::make_shared<const program::Program>(*std::move(decoded));
  store::CreateOptions options;
  options.requires_grad = request->requires_grad();
  runtime_.store()
      .GetOrCreate(request->name(), options, [this, program] { return RunCreation(runtime_, *program); })
      .OnReady([this, call, program, options](const absl::StatusOr<EntryPtr>& entry) {
        if (!entry.ok()) return call->Reply(entry.status());
        absl::Status same = CheckSameType(runtime_.operators(), **entry, *program, options.requires_grad);
        if (!same.ok()) return call->Reply(same);
        call->Reply(ReferenceReply(runtime_, *call, *entry));
      });
}

void ValueService::ServeLookup(const CallPtr& call) {
  auto request = ParseMessage<v1::NameRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto entry = runtime_.store().Lookup(request->name());
  if (!entry.ok()) return call->Reply(entry.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before lookup"));
  call->Reply(ReferenceReply(runtime_, *call, *entry));
}

void ValueService::ServeDrop(const CallPtr& call) {
  auto request = ParseMessage<v1::NameRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before drop"));
  absl::Status dropped = DropHere(request->name());
  if (!dropped.ok()) return call->Reply(dropped);
  call->Reply(rpc::Payload{});
}

absl::Status ValueService::DropHere(const std::string& name) {
  PSD_ASSIGN_OR_RETURN(EntryPtr entry, runtime_.store().Drop(name));
  // The handle frees the value when it goes, unless there are others.
  runtime_.rrefs().LocalRRef(std::move(entry));
  return absl::OkStatus();
}

void ValueService::ServeFetch(const CallPtr& call) {
  auto request = ParseMessage<v1::FetchRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto received = runtime_.autograd().UnwrapRequest(*call, {});
  if (!received.ok()) return call->Reply(received.status());
  auto entries = FindAll(runtime_.store(), *request);
  if (!entries.ok()) return call->Reply(entries.status());
  ReplyWithValues(runtime_, *call, received->context, store::Entry::ReadAll(*entries));
}

void ValueService::ServeAssign(const CallPtr& call) {
  auto fields = ParseFields<v1::AssignRequest>(*call);
  if (!fields.ok()) return call->Reply(fields.status());
  auto arguments = DecodeRequest(runtime_, *call);
  if (!arguments.ok()) return call->Reply(arguments.status());
  const Variable* elements =
      arguments->values.size() == 1 ? arguments->values[0].As<Variable>() : nullptr;
  if (elements == nullptr) {
    return call->Reply(absl::InvalidArgumentError("value.assign takes exactly one tensor"));
  }
  auto entry = runtime_.store().Get({fields->incarnation(), fields->counter()});
  if (!entry.ok()) return call->Reply(entry.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before assign"));
  runtime_.store().Assign(*entry, elements->tensor(), [call](absl::StatusOr<uint64_t> version) {
    if (!version.ok()) return call->Reply(version.status());
    v1::AssignReply reply;
    reply.set_version(*version);
    call->Reply(PlainPayload(reply));
  });
}

void ValueService::ServeList(const CallPtr& call) {
  auto request = ParseMessage<v1::ListRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  size_t limit = request->limit() == 0 ? kMaxListPage
                                       : std::min<size_t>(request->limit(), kMaxListPage);
  std::vector<EntryPtr> entries =
      runtime_.store().List(request->prefix(), request->after(), limit + 1);
  v1::ListReply reply;
  reply.set_more(entries.size() > limit);
  if (reply.more()) entries.resize(limit);
  for (const EntryPtr& entry : entries) {
    reply.add_names(entry->name);
    reply.add_kinds(entry->KindName());
    reply.add_versions(entry->parameter == nullptr ? 0 : entry->parameter->version());
    reply.add_bytes(entry->parameter == nullptr ? 0 : entry->parameter->stats().bytes);
  }
  call->Reply(PlainPayload(reply));
}

void ValueService::ServeGradient(const CallPtr& call) {
  auto request = ParseMessage<v1::GradientRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto context = runtime_.autograd().Find(
      {request->context_incarnation(), request->context_counter()});
  if (!context.ok()) return call->Reply(context.status());
  auto gradient =
      (*context)->Gradient({request->leaf_incarnation(), request->leaf_counter()});
  if (!gradient.ok()) return call->Reply(gradient.status());
  ReplyWithValues(runtime_, *call, nullptr, Values{Value(gradient->gradient)});
}

// ---- caller

Future<RRef> ValueService::GetOrCreate(const std::string& owner, const std::string& name,
                                       const program::Program& create, bool requires_grad,
                                       const rpc::CallOptions& options) {
  v1::GetOrCreateRequest request;
  request.set_name(name);
  request.set_program(program::EncodeProgram(create));
  request.set_requires_grad(requires_grad);
  return runtime_.agent()
      .StartCall(owner, PlainRequest("value.get_or_create", request), options)
      .reply()
      .Then([this, owner](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<RRef> {
        if (!reply.ok()) return reply.status();
        return AdoptReference(runtime_, owner, *reply);
      });
}

Future<RRef> ValueService::Lookup(const std::string& owner, const std::string& name,
                                  const rpc::CallOptions& options) {
  v1::NameRequest request;
  request.set_name(name);
  return runtime_.agent()
      .StartCall(owner, PlainRequest("value.lookup", request), options)
      .reply()
      .Then([this, owner](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<RRef> {
        if (!reply.ok()) return reply.status();
        return AdoptReference(runtime_, owner, *reply);
      });
}

Future<Unit> ValueService::Drop(const std::string& owner, const std::string& name,
                                const rpc::CallOptions& options) {
  v1::NameRequest request;
  request.set_name(name);
  return runtime_.agent()
      .StartCall(owner, PlainRequest("value.drop", request), options)
      .reply()
      .Then([](const absl::StatusOr<rpc::Reply>& reply) { return reply.status(); });
}

Future<uint64_t> ValueService::Assign(const RRef& parameter, const Tensor& elements,
                                      const rpc::CallOptions& options) {
  absl::Status usable = runtime_.rrefs().CheckUsable(parameter);
  if (!usable.ok()) return Future<uint64_t>::Ready(usable);
  auto request = EncodeRequest(runtime_, "value.assign", parameter.owner(), {Value(elements)},
                               nullptr);
  if (!request.ok()) return Future<uint64_t>::Ready(request.status());
  v1::AssignRequest fields;
  fields.set_incarnation(parameter.value_id().incarnation);
  fields.set_counter(parameter.value_id().counter);
  request->attachments.push_back(FieldsAttachment(fields));
  request->only_incarnation = parameter.body()->owner_incarnation();
  return runtime_.agent()
      .StartCall(parameter.owner(), *std::move(request), options)
      .reply()
      .Then([parameter](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<uint64_t> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(auto message,
                             ParseMessage<v1::AssignReply>(reply->payload.header, "value.assign"));
        return message.version();
      });
}

Future<std::vector<ListedValue>> ValueService::List(const std::string& owner,
                                                    const std::string& prefix,
                                                    const rpc::CallOptions& options) {
  Promise<std::vector<ListedValue>> promise;
  auto listed = std::make_shared<std::vector<ListedValue>>();
  // Asks page by page; each answer asks for the next.
  auto ask = std::make_shared<std::function<void(std::string)>>();
  std::weak_ptr<std::function<void(std::string)>> again = ask;
  *ask = [this, owner, prefix, options, promise, listed, again](std::string after) {
    v1::ListRequest request;
    request.set_prefix(prefix);
    request.set_after(after);
    auto self = again.lock();
    runtime_.agent()
        .StartCall(owner, PlainRequest("value.list", request), options)
        .reply()
        .OnReady([promise, listed, self](const absl::StatusOr<rpc::Reply>& reply) {
          if (!reply.ok()) return static_cast<void>(promise.Set(reply.status()));
          auto page = ParseMessage<v1::ListReply>(reply->payload.header, "value.list");
          if (!page.ok()) return static_cast<void>(promise.Set(page.status()));
          int size = std::min({page->names_size(), page->kinds_size(), page->versions_size(),
                               page->bytes_size()});
          for (int i = 0; i < size; ++i) {
            listed->push_back(
                {page->names(i), page->kinds(i), page->versions(i), page->bytes(i)});
          }
          if (page->more() && size > 0) return (*self)(listed->back().name);
          promise.Set(std::move(*listed));
        });
  };
  (*ask)("");
  return promise.future();
}

Future<Values> ValueService::Fetch(const std::vector<RRef>& rrefs, const ContextPtr& context,
                                   const rpc::CallOptions& options) {
  // By owner, in order of first appearance.
  std::vector<std::string> owners;
  std::map<std::string, std::vector<size_t>> places;
  for (size_t i = 0; i < rrefs.size(); ++i) {
    if (!rrefs[i].valid()) {
      return Future<Values>::Ready(absl::InvalidArgumentError(
          absl::StrCat("RRef ", i, " of ", rrefs.size(), " refers to nothing")));
    }
    std::vector<size_t>& indices = places[rrefs[i].owner()];
    if (indices.empty()) owners.push_back(rrefs[i].owner());
    indices.push_back(i);
  }
  if (owners.empty()) return Future<Values>::Ready(Values{});

  struct Gather {
    Mutex mutex;
    Values values PSD_GUARDED_BY(mutex);
    size_t missing PSD_GUARDED_BY(mutex) = 0;
  };
  auto gather = std::make_shared<Gather>();
  {
    MutexLock lock(gather->mutex);
    gather->values.resize(rrefs.size());
    gather->missing = owners.size();
  }
  Promise<Values> promise;
  for (const std::string& owner : owners) {
    const std::vector<size_t>& indices = places[owner];
    std::vector<RRef> mine;
    mine.reserve(indices.size());
    for (size_t index : indices) mine.push_back(rrefs[index]);
    FetchFrom(owner, std::move(mine), context, options)
        .OnReady([gather, promise, indices](const absl::StatusOr<Values>& fetched) {
          if (!fetched.ok()) return static_cast<void>(promise.Set(fetched.status()));
          Values all;
          {
            MutexLock lock(gather->mutex);
            for (size_t i = 0; i < indices.size(); ++i) gather->values[indices[i]] = (*fetched)[i];
            if (--gather->missing > 0) return;
            all = std::move(gather->values);
          }
          promise.Set(std::move(all));
        });
  }
  return promise.future();
}

Future<Values> ValueService::FetchFrom(const std::string& owner, std::vector<RRef> rrefs,
                                       const ContextPtr& context,
                                       const rpc::CallOptions& options) {
  using Result = Future<Values>;
  if (owner == runtime_.name()) {
    std::vector<EntryPtr> entries;
    for (const RRef& rref : rrefs) entries.push_back(rref.local_entry());
    return Result::Ready(store::Entry::ReadAll(entries));
  }
  // A use that overtakes a creation waits for it, without a thread.
  for (const RRef& rref : rrefs) {
    if (rref.body()->confirmed().IsReady()) continue;
    Promise<Values> promise;
    Future<Unit> confirmed = rref.body()->confirmed();
    confirmed.OnReady([this, owner, rrefs = std::move(rrefs), context, options,
                       promise](const absl::StatusOr<Unit>& created) mutable {
      if (!created.ok()) return static_cast<void>(promise.Set(created.status()));
      FetchFrom(owner, std::move(rrefs), context, options)
          .OnReady([promise](const absl::StatusOr<Values>& values) { promise.Set(values); });
    });
    return promise.future();
  }
  v1::FetchRequest message;
  for (const RRef& rref : rrefs) {
    absl::Status usable = runtime_.rrefs().CheckUsable(rref);
    if (!usable.ok()) return Result::Ready(usable);
    message.add_incarnations(rref.value_id().incarnation);
    message.add_counters(rref.value_id().counter);
  }
  rpc::Request request = PlainRequest("value.fetch", message);
  request.only_incarnation = rrefs[0].body()->owner_incarnation();
  if (context != nullptr) {
    auto attachment = runtime_.autograd().WrapRequest(context, owner, {});
    if (!attachment.ok()) return Result::Ready(attachment.status());
    request.attachments.push_back(*std::move(attachment));
  }
  size_t expected = rrefs.size();
  return runtime_.agent()
      .StartCall(owner, std::move(request), options)
      .reply()
      .Then([this, context, owner, expected, rrefs = std::move(rrefs)](
                const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<Values> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(Values values, DecodeReply(runtime_, context, *reply));
        if (values.size() != expected) {
          return absl::InternalError(absl::StrCat(owner, " was asked for ", expected,
                                                  " values and sent ", values.size()));
        }
        return values;
      });
}

Future<Tensor> ValueService::FetchGradient(GlobalId context, const RRef& leaf,
                                           const rpc::CallOptions& options) {
  absl::Status usable = runtime_.rrefs().CheckUsable(leaf);
  if (!usable.ok()) return Future<Tensor>::Ready(usable);
  v1::GradientRequest message;
  message.set_context_incarnation(context.incarnation);
  message.set_context_counter(context.counter);
  message.set_leaf_incarnation(leaf.value_id().incarnation);
  message.set_leaf_counter(leaf.value_id().counter);
  rpc::Request request = PlainRequest("gradient.fetch", message);
  request.only_incarnation = leaf.body()->owner_incarnation();
  return runtime_.agent()
      .StartCall(leaf.owner(), std::move(request), options)
      .reply()
      .Then([this, leaf](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<Tensor> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(Values values, DecodeReply(runtime_, nullptr, *reply));
        const Variable* gradient = values.size() == 1 ? values[0].As<Variable>() : nullptr;
        if (gradient == nullptr) {
          return absl::InternalError(absl::StrCat(leaf.owner(), " answered no gradient"));
        }
        return gradient->tensor();
      });
}

}  // namespace psd::worker
