// Server side of the value service.
#include "core/services/values/value_service.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/dist_autograd/context.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/program/program_codec.h"
#include "core/program/run_program.h"
#include "core/rpc/message_io.h"
#include "core/rref/value_codec.h"
#include "core/store/parameter.h"
#include "core/store/rows.h"
#include "core/tensor/flat_tensor.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {
namespace {

using store::EntryPtr;
using store::Value;

constexpr size_t kMaxListPage = 1000;

// The facts of a value that a listing and a second creator need.
struct Facts {
  Shape shape;
  DType dtype = DType::kF32;
  bool rows = false;
  bool requires_grad = false;
  uint64_t version = 0;
  size_t bytes = 0;
};

// Returns nothing for a value that is neither a parameter nor rows.
std::optional<Facts> FactsOf(const store::Entry& entry) {
  if (const store::Parameter* p = entry.parameter.get()) {
    return Facts{p->shape(), p->dtype(), false, p->requires_grad(), p->version(), p->stats().bytes};
  }
  if (const auto r = store::AsRows(entry.value); r != nullptr)
    return Facts{r->shape(), r->dtype(), true, r->requires_grad(), r->version(), r->bytes()};
  return std::nullopt;
}

// Returns whether `program` would create a value of this shape and dtype. Only programs of a single
// operator are checked; for others the answer is true.
bool WouldMake(const OperatorRegistry& operators, const program::Program& program,
               const Facts& facts) {
  if (program.num_inputs != 0 || program.instructions.size() != 1) return true;
  const program::Instruction& creation = program.instructions[0];
  auto shape = operators.OutputShape(creation.op, {}, creation.attributes);
  if (!shape.ok()) return true;
  auto stated = creation.attributes.find("dtype");
  const int64_t* number =
      stated == creation.attributes.end() ? nullptr : std::get_if<int64_t>(&stated->second);
  int64_t dtype = number == nullptr ? static_cast<int64_t>(DType::kF32) : *number;
  return facts.shape == *shape && static_cast<int64_t>(facts.dtype) == dtype;
}

absl::Status CheckSameType(const OperatorRegistry& operators, const store::Entry& entry,
                           const program::Program& program, bool requires_grad, bool rows) {
  const std::optional<Facts> facts = FactsOf(entry);
  if (!facts.has_value() && !rows) return absl::OkStatus();
  if (facts.has_value() && facts->rows == rows && facts->requires_grad == requires_grad &&
      WouldMake(operators, program, *facts)) {
    return absl::OkStatus();
  }
  const char* grad = "";
  if (facts.has_value())
    grad = facts->requires_grad ? " that requires grad" : " that requires no grad";
  return WithRemedy(absl::FailedPreconditionError(
                        absl::StrCat("'", entry.name, "' exists as ", entry.KindName(), grad,
                                     ", which is not what this call would create")),
                    "drop it, or use another name");
}

// A value that is created stays, so the rest of the memory budget bounds it instead of the limit
// for results.
program::ProgramLimits CreationLimits(const ValueService::Uses& uses) {
  program::ProgramLimits limits = uses.program_limits;
  const MemoryAccount& memory = uses.store.memory();
  const size_t limit = memory.limit_bytes();
  const size_t left = limit - std::min(limit, memory.used_bytes());
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  limits.max_result_bytes = limit == 0 ? kNoLimit : static_cast<int64_t>(left);
  limits.max_live_bytes = std::max(limits.max_live_bytes, limits.max_result_bytes);
  return limits;
}

std::string BudgetText(const MemoryBudget& memory) {
  if (memory.limit_bytes() == 0) return "no memory budget is set, and the system has no more";
  const MemoryAccount& hosted = *memory.hosted();
  return absl::StrCat("the memory budget is ", memory.limit_bytes(), " bytes, ",
                      hosted.limit_bytes(), " for values, of which ", hosted.used_bytes(),
                      " are in use; drop values or raise the budget");
}

// Runs a creation program, which has no arguments and one result. No history is recorded.
absl::StatusOr<Value> RunCreation(const ValueService::Uses& uses,
                                  const program::CheckedProgram& program) {
  NoGradGuard no_grad;
  const auto results = program::RunProgram(program, CreationLimits(uses), {}, [] { return false; });
  if (absl::IsResourceExhausted(results.status())) {
    return absl::ResourceExhaustedError(
        absl::StrCat(results.status().message(), "; ", BudgetText(uses.memory)));
  }
  PSD_RETURN_IF_ERROR(results.status());
  if (results->size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a creation program must have one result, this one has ", results->size()));
  }
  return Value(results->front().Detach());
}

// Runs a creation program and returns its result as an embedding table, in memory of the store's
// budget.
absl::StatusOr<Value> CreateRows(const ValueService::Uses& uses,
                                 const program::CheckedProgram& program, bool requires_grad) {
  PSD_ASSIGN_OR_RETURN(Value made, RunCreation(uses, program));
  const auto* variable = made.As<Variable>();
  PSD_RETURN_IF_ERROR(variable->status());
  PSD_ASSIGN_OR_RETURN(Tensor elements, variable->tensor().Clone(&uses.store.memory()));
  PSD_ASSIGN_OR_RETURN(auto rows, store::Rows::Create(std::move(elements), requires_grad));
  return Value(std::shared_ptr<store::Object>(std::move(rows)));
}

GlobalId IdAt(const v1::FetchRequest& request, int i) {
  return {request.incarnations(i), request.counters(i)};
}

// Returns the entries of all ids in the request. Errors: INVALID_ARGUMENT, NOT_FOUND naming the id.
absl::StatusOr<store::EntryGroupPtr> FindAll(store::Store& store, const v1::FetchRequest& request) {
  if (request.incarnations_size() != request.counters_size()) {
    return absl::InvalidArgumentError(absl::StrCat("value.fetch: ", request.incarnations_size(),
                                                   " incarnations, but ", request.counters_size(),
                                                   " counters"));
  }
  std::vector<GlobalId> ids;
  ids.reserve(request.counters_size());
  for (int i = 0; i < request.counters_size(); ++i) ids.push_back(IdAt(request, i));
  return store.GetGroup(ids);
}

// Returns one leaf for each of `parameters`, with the version that was pinned. Leaves of parameters
// that do not require grad have no key.
std::vector<LeafInfo> LeavesOf(absl::Span<store::Parameter* const> parameters,
                               const store::PinnedTogether& pinned) {
  std::vector<LeafInfo> leaves;
  leaves.reserve(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const FlatTensor& tensor = pinned.tensors[i];
    if (parameters[i]->requires_grad()) {
      leaves.push_back({parameters[i]->id(), *tensor.shape, tensor.dtype, pinned.versions[i]});
    } else {
      leaves.emplace_back();
    }
  }
  return leaves;
}

// Adds the name of this worker to an error of the store about a name.
absl::Status NamingError(const ValueService::Uses& uses, const std::string& name,
                         const absl::Status& status) {
  ErrorDetail detail;
  detail.worker = uses.agent.self().name;
  detail.object = name;
  detail.remedy = "create it, or list what is there";
  return WithDetail(Annotate(status, uses.agent.self().name), detail);
}

}  // namespace

ValueService::ValueService(Uses uses) : uses_(std::move(uses)) {
  auto add = [&](const char* name, rpc::MethodKind kind, rpc::RunsOn runs_on,
                 void (ValueService::*serve)(const CallPtr&)) {
    uses_.agent.RegisterMethod(
        {name, kind, runs_on, [this, serve](CallPtr call) { (this->*serve)(call); }});
  };
  using rpc::MethodKind;
  using rpc::RunsOn;
  add("value.get_or_create", MethodKind::kMutation, RunsOn::kUserQueue,
      &ValueService::ServeGetOrCreate);
  add("value.lookup", MethodKind::kMutation, RunsOn::kCarrierThread, &ValueService::ServeLookup);
  add("value.drop", MethodKind::kMutation, RunsOn::kCarrierThread, &ValueService::ServeDrop);
  add("value.fetch", MethodKind::kRead, RunsOn::kCarrierThread, &ValueService::ServeFetch);
  add("value.assign", MethodKind::kMutation, RunsOn::kUserQueue, &ValueService::ServeAssign);
  add("value.list", MethodKind::kRead, RunsOn::kCarrierThread, &ValueService::ServeList);
}

void ValueService::ServeGetOrCreate(const CallPtr& call) {
  auto request = rpc::ParseMessage<v1::GetOrCreateRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto decoded = program::DecodeProgram(request->program(), uses_.program_limits);
  if (!decoded.ok()) return call->Reply(decoded.status());
  auto checked =
      program::CheckedProgram::Create(*std::move(decoded), uses_.operators, uses_.program_limits);
  if (!checked.ok()) return call->Reply(checked.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before creation"));
  GetOrCreateHere(
      call, {request->name(), std::make_shared<const program::CheckedProgram>(*std::move(checked)),
             request->rows(), request->requires_grad()});
}

void ValueService::GetOrCreateHere(const CallPtr& call, const Creation& creation) {
  store::CreateOptions options;
  options.requires_grad = creation.requires_grad && !creation.rows;  // rows keep their own flag
  uses_.store
      .GetOrCreate(creation.name, options,
                   [this, creation] {
                     return creation.rows
                                ? CreateRows(uses_, *creation.program, creation.requires_grad)
                                : RunCreation(uses_, *creation.program);
                   })
      .OnReady([this, call, creation](const absl::StatusOr<EntryPtr>& entry) {
        if (!entry.ok()) return call->Reply(entry.status());
        absl::Status same = CheckSameType(uses_.operators, **entry, creation.program->program(),
                                          creation.requires_grad, creation.rows);
        if (!same.ok()) return call->Reply(same);
        absl::StatusOr<rpc::Payload> reply = uses_.exchange.ReferenceReply(*call, *entry);
        // The value was dropped and freed since it was found, so the name is free again.
        if (absl::IsNotFound(reply.status())) return GetOrCreateHere(call, creation);
        call->Reply(std::move(reply));
      });
}

void ValueService::ServeLookup(const CallPtr& call) {
  auto request = rpc::ParseMessage<v1::NameRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto entry = uses_.store.Lookup(request->name());
  if (!entry.ok()) return call->Reply(NamingError(uses_, request->name(), entry.status()));
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before lookup"));
  call->Reply(uses_.exchange.ReferenceReply(*call, *entry));
}

void ValueService::ServeDrop(const CallPtr& call) {
  auto request = rpc::ParseMessage<v1::NameRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before drop"));
  absl::Status dropped = DropHere(request->name());
  if (!dropped.ok()) return call->Reply(NamingError(uses_, request->name(), dropped));
  call->Reply(rpc::Payload{});
}

absl::Status ValueService::DropHere(const std::string& name, GlobalId only) {
  return optim::DropNamed(uses_.store, uses_.rrefs, name, only);
}

void ValueService::ServeFetch(const CallPtr& call) {
  auto request = rpc::ParseMessage<v1::FetchRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto received = uses_.autograd.UnwrapRequest(*call, {});
  if (!received.ok()) return call->Reply(received.status());
  auto group = FindAll(uses_.store, *request);
  if (!group.ok()) return call->Reply(group.status());
  const std::vector<EntryPtr>& entries = (*group)->entries;
  if ((*group)->parameters.size() == entries.size())
    return ReplyWithParameters(*call, received->context, **group, request->versions());
  if (request->versions()) {
    return call->Reply(absl::InvalidArgumentError(
        "value.fetch: versions are asked for, but not all values are parameters"));
  }
  uses_.exchange.ReplyWithValues(*call, received->context, store::Entry::ReadAll(entries));
}

// Does the same as ReplyWithValues for a group that has only parameters, but creates no tensors,
// variables and graph nodes for them.
void ValueService::ReplyWithParameters(rpc::ServerCall& call,
                                       const dist_autograd::ContextPtr& context,
                                       const store::EntryGroup& group, bool versions) {
  auto pinned = store::Parameter::PinTogether(group.parameters, group.keeper);
  if (!pinned.ok()) return call.Reply(pinned.status());
  auto payload = rref::EncodeFlatTensors(pinned->tensors, pinned->holder);
  std::vector<rpc::Attachment> attachments;
  if (payload.ok() && context != nullptr) {
    auto wrapped = uses_.autograd.WrapLeaves(context, LeavesOf(group.parameters, *pinned));
    if (!wrapped.ok()) return call.Reply(wrapped.status());
    attachments = *std::move(wrapped);
  }
  if (versions) {
    v1::FetchedVersions fetched;
    fetched.mutable_versions()->Add(pinned->versions.begin(), pinned->versions.end());
    attachments.push_back(rpc::FieldsAttachment(fetched));
  }
  call.Reply(std::move(payload), std::move(attachments));
}

void ValueService::ServeAssign(const CallPtr& call) {
  auto fields = rpc::ParseFields<v1::AssignRequest>(*call);
  if (!fields.ok()) return call->Reply(fields.status());
  auto arguments = uses_.exchange.DecodeRequest(*call);
  if (!arguments.ok()) return call->Reply(arguments.status());
  const Variable* elements =
      arguments->values.size() == 1 ? arguments->values[0].As<Variable>() : nullptr;
  if (elements == nullptr) {
    return call->Reply(absl::InvalidArgumentError("value.assign takes exactly one tensor"));
  }
  auto entry = uses_.store.Get({fields->incarnation(), fields->counter()});
  if (!entry.ok()) return call->Reply(entry.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before assign"));
  uses_.store.Assign(*entry, elements->tensor(), [call](absl::StatusOr<uint64_t> version) {
    if (!version.ok()) return call->Reply(version.status());
    v1::AssignReply reply;
    reply.set_version(*version);
    call->Reply(rpc::PlainPayload(reply));
  });
}

void ValueService::ServeList(const CallPtr& call) {
  auto request = rpc::ParseMessage<v1::ListRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  size_t limit =
      request->limit() == 0 ? kMaxListPage : std::min<size_t>(request->limit(), kMaxListPage);
  std::vector<EntryPtr> entries = uses_.store.List(request->prefix(), request->after(), limit + 1);
  v1::ListReply reply;
  reply.set_more(entries.size() > limit);
  if (reply.more()) entries.resize(limit);
  for (const EntryPtr& entry : entries) {
    reply.add_names(entry->name);
    reply.add_kinds(entry->KindName());
    const Facts facts = FactsOf(*entry).value_or(Facts{});
    reply.add_versions(facts.version);
    reply.add_bytes(facts.bytes);
  }
  call->Reply(rpc::PlainPayload(reply));
}

}  // namespace psd::services
