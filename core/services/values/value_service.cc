// Server side of the value service.
#include "core/services/values/value_service.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/device_pieces/piece_methods.h"
#include "core/dist_autograd/context.h"
#include "core/program/program_codec.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/message_io.h"
#include "core/rref/authorize.h"
#include "core/rref/value_codec.h"
#include "core/services/values/value_methods.h"
#include "core/store/parameter.h"
#include "core/store/rows.h"
#include "core/tensor/flat_tensor.h"
#include "core/tensor/tensor.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {
namespace {

using store::EntryPtr;
using store::Value;

constexpr size_t kMaxListPage = 1000;

// The properties of a value that a listing and a second creator need.
struct Facts {
  Shape shape;
  DType dtype = DType::kF32;
  bool rows = false;
  bool requires_grad = false;
  uint64_t version = 0;
  size_t bytes = 0;
  absl::string_view device = kCpuName;
};

// Returns nothing for a value that is neither a parameter nor a table of rows.
std::optional<Facts> FactsOf(const store::Entry& entry) {
  if (const store::Parameter* p = entry.parameter.get()) {
    return Facts{p->shape(),
                 p->dtype(),
                 false,
                 p->requires_grad(),
                 p->version(),
                 p->stats().bytes,
                 DeviceName(p->device())};
  }
  if (const auto r = store::AsRows(entry.value); r != nullptr)
    return Facts{r->shape(),
                 r->dtype(),
                 true,
                 r->requires_grad(),
                 r->version(),
                 r->bytes(),
                 DeviceName(r->device())};
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
                           const program::Program& program, bool requires_grad, bool rows,
                           absl::string_view device) {
  const std::optional<Facts> facts = FactsOf(entry);
  const bool any_device = device.empty() || device == kAutoDevice;
  if (!facts.has_value() && !rows && (any_device || device == kCpuName)) return absl::OkStatus();
  const bool same_device = facts.has_value() && (any_device || facts->device == device);
  if (same_device && facts->rows == rows && facts->requires_grad == requires_grad &&
      WouldMake(operators, program, *facts)) {
    return absl::OkStatus();
  }
  const char* grad = "";
  if (facts.has_value())
    grad = facts->requires_grad ? " that requires grad" : " that requires no grad";
  // The kind of a value on another device names it.
  const char* place =
      !same_device && facts.has_value() && facts->device == kCpuName ? " on the cpu" : "";
  return WithRemedy(absl::FailedPreconditionError(
                        absl::StrCat("'", entry.name, "' exists as ", entry.KindName(), place, grad,
                                     ", which is not what this call would create")),
                    "drop it, or use another name");
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

// Returns the device that has all parameters of the group that require grad; null if there is no
// such device.
Device* DeviceOfLeaves(const store::EntryGroup& group) {
  if (!group.on_device) return nullptr;
  std::optional<Device*> common;
  for (const store::Parameter* parameter : group.parameters) {
    if (!parameter->requires_grad()) continue;
    if (common.value_or(parameter->device()) != parameter->device()) return nullptr;
    common = parameter->device();
  }
  return common.value_or(nullptr);
}

struct PinnedForPieces {
  // The holder keeps no tensor of `on_devices`, so that these are released when their pull ends,
  // however long the caller keeps the others.
  store::PinnedTogether pinned;
  std::vector<Tensor> on_devices;  // in the order of `pinned`
};

// As Parameter::PinTogether, but large versions on devices stay there.
absl::StatusOr<PinnedForPieces> PinForPieces(absl::Span<store::Parameter* const> parameters) {
  PSD_ASSIGN_OR_RETURN(const std::vector<store::PinnedVersion> versions,
                       store::Parameter::PinAll(parameters));
  auto held = std::make_shared<std::vector<Tensor>>();
  PinnedForPieces result;
  for (const store::PinnedVersion& version : versions) {
    Tensor tensor = version.tensor;
    if (tensor.NumBytes() <= device_pieces::kPieceBytes) {
      PSD_ASSIGN_OR_RETURN(tensor, tensor.ToHost());
    }
    result.pinned.tensors.push_back(
        {&tensor.shape(), tensor.address(), tensor.NumBytes(), tensor.dtype(), tensor.block()});
    result.pinned.versions.push_back(version.version);
    (tensor.OnHost() ? *held : result.on_devices).push_back(std::move(tensor));
  }
  result.pinned.holder = std::move(held);
  return result;
}

// Returns an event behind the work that writes those of `tensors` that are on `device`; they were
// pinned on this thread. No event if there are none, or the device gives none.
DeviceEvent BehindWrites(const std::vector<Tensor>& tensors, Device* device) {
  const auto there = [device](const Tensor& tensor) { return tensor.device() == device; };
  if (device == nullptr || std::none_of(tensors.begin(), tensors.end(), there)) return {};
  // The pins have ordered the default stream behind that work.
  absl::StatusOr<std::shared_ptr<Event>> event = device->default_stream().Record();
  return event.ok() ? DeviceEvent{device, *std::move(event)} : DeviceEvent();
}

// Does the same as Exchange::EncodeReply for a group that has only parameters, which are pinned,
// but creates no tensors, variables and graph nodes for them. Tensors on devices become buffers
// there.
absl::StatusOr<rpc::Contents> EncodeParameters(dist_autograd::DistAutograd& autograd,
                                               const dist_autograd::ContextPtr& context,
                                               const store::EntryGroup& group,
                                               const store::PinnedTogether& pinned, bool versions) {
  rpc::Contents reply;
  PSD_ASSIGN_OR_RETURN(reply.payload, rref::EncodeFlatTensors(pinned.tensors, pinned.holder));
  if (context != nullptr) {
    PSD_ASSIGN_OR_RETURN(
        reply.attachments,
        autograd.WrapLeaves(context, LeavesOf(group.parameters, pinned), DeviceOfLeaves(group)));
  }
  if (versions) {
    v1::FetchedVersions fetched;
    fetched.mutable_versions()->Add(pinned.versions.begin(), pinned.versions.end());
    reply.attachments.push_back(rpc::FieldsAttachment(fetched));
  }
  return reply;
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
  rpc::Serve(uses_.agent, kValueGetOrCreate, this, &ValueService::ServeGetOrCreate);
  rpc::Serve(uses_.agent, kValueLookup, this, &ValueService::ServeLookup);
  rpc::Serve(uses_.agent, kValueDrop, this, &ValueService::ServeDrop);
  rpc::Serve(uses_.agent, kValueFetch, this, &ValueService::ServeFetch);
  rpc::Serve(uses_.agent, kValueAssign, this, &ValueService::ServeAssign);
  rpc::Serve(uses_.agent, kValueList, this, &ValueService::ServeList);
}

ValueService::~ValueService() {
  gate_->Close();
}

absl::Status ValueService::ServeGetOrCreate(const rpc::Answer<rpc::Contents>& answer,
                                            v1::GetOrCreateRequest request) {
  PSD_ASSIGN_OR_RETURN(program::Program decoded,
                       program::DecodeProgram(request.program(), uses_.program_limits));
  PSD_ASSIGN_OR_RETURN(
      program::CheckedProgram checked,
      program::CheckedProgram::Create(std::move(decoded), uses_.operators, uses_.program_limits));
  PSD_RETURN_IF_ERROR(uses_.agent.access().Authorize(rpc::AskerOf(*answer.call()),
                                                     rpc::Right::kCreate, request.name()));
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*answer.call()));
  GetOrCreateHere(answer, {{},
                           request.name(),
                           std::make_shared<const program::CheckedProgram>(std::move(checked)),
                           {},
                           request.rows(),
                           request.requires_grad(),
                           request.device()});
  return absl::OkStatus();
}

void ValueService::GetOrCreateHere(const rpc::Answer<rpc::Contents>& answer,
                                   const change::CreateValue& creation) {
  uses_.changes.Apply(creation).OnReady(
      [this, answer, creation](const absl::StatusOr<EntryPtr>& entry) {
        if (!entry.ok()) return answer(entry.status());
        absl::Status same = CheckSameType(uses_.operators, **entry, creation.program->program(),
                                          creation.requires_grad, creation.rows, creation.device);
        if (!same.ok()) return answer(same);
        auto reply = uses_.exchange.ReferenceReply(*answer.call(), *entry);
        // The value was dropped and freed since it was found, so the name is free again.
        if (absl::IsNotFound(reply.status())) return GetOrCreateHere(answer, creation);
        answer(std::move(reply));
      });
}

absl::StatusOr<rpc::Contents> ValueService::ServeLookup(const rpc::CallPtr& call,
                                                        v1::NameRequest request) {
  auto entry = rref::FindNamed(uses_.agent.access(), uses_.store, rpc::AskerOf(*call),
                               rpc::Right::kRead, request.name());
  if (absl::IsNotFound(entry.status())) return NamingError(uses_, request.name(), entry.status());
  PSD_RETURN_IF_ERROR(entry.status());
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*call));
  return uses_.exchange.ReferenceReply(*call, *entry);
}

absl::Status ValueService::ServeDrop(const rpc::CallPtr& call, v1::NameRequest request) {
  PSD_RETURN_IF_ERROR(
      uses_.agent.access().Authorize(rpc::AskerOf(*call), rpc::Right::kDrop, request.name()));
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*call));
  absl::Status dropped = DropAllowed(rpc::AskerOf(*call), request.name());
  return dropped.ok() ? dropped : NamingError(uses_, request.name(), dropped);
}

absl::Status ValueService::DropHere(const std::string& name, GlobalId only) {
  const absl::Status dropped = uses_.changes.Drop(uses_.rrefs, name, only);
  uses_.agent.access().NameDropped();
  return dropped;
}

absl::Status ValueService::DropFor(const rpc::Asker& asker, const std::string& name) {
  PSD_RETURN_IF_ERROR(uses_.agent.access().Authorize(asker, rpc::Right::kDrop, name));
  return DropAllowed(asker, name);
}

absl::Status ValueService::DropAllowed(const rpc::Asker& asker, const std::string& name) {
  absl::Status dropped = DropHere(name);
  if (!absl::IsNotFound(dropped)) return dropped;
  return rref::UnknownName(uses_.agent.access(), uses_.store, asker, name);
}

absl::Status ValueService::ServeFetch(const rpc::Answer<rpc::Contents>& answer,
                                      v1::FetchRequest request) {
  const rpc::CallPtr& call = answer.call();
  PSD_ASSIGN_OR_RETURN(const auto received, uses_.autograd.UnwrapRequest(*call, {}));
  PSD_ASSIGN_OR_RETURN(const store::EntryGroupPtr group, FindAll(uses_.store, request));
  PSD_RETURN_IF_ERROR(
      rref::Authorize(uses_.agent.access(), rpc::AskerOf(*call), rpc::Right::kRead, *group));
  const bool light = !group->on_device;
  rpc::RunBySize(uses_.executor, light, answer,
                 [this, answer, context = received.context, group, request = std::move(request)] {
                   return ReadAndAnswer(answer, context, *group, request);
                 });
  return absl::OkStatus();
}

absl::Status ValueService::ReadAndAnswer(const rpc::Answer<rpc::Contents>& answer,
                                         const dist_autograd::ContextPtr& context,
                                         const store::EntryGroup& group,
                                         const v1::FetchRequest& request) {
  PSD_ASSIGN_OR_RETURN(Read read, ReadGroup(*answer.call(), context, group, request));
  if (read.after.event == nullptr) {
    answer(std::move(read.reply));
    return absl::OkStatus();
  }
  const DeviceEvent after = read.after;
  uses_.completions.OnPassed(after, [answer, read = std::move(read)](absl::Status done) mutable {
    // Nobody takes the answer any more, and a session that has ended releases no loans.
    if (done.ok() && answer.call()->cancelled())
      done = absl::CancelledError("value.fetch: the caller has given up");
    if (done.ok()) return answer(std::move(read.reply));
    read.take_back();
    answer(std::move(done));
  });
  return absl::OkStatus();
}

absl::StatusOr<ValueService::Read> ValueService::ReadGroup(rpc::ServerCall& call,
                                                           const dist_autograd::ContextPtr& context,
                                                           const store::EntryGroup& group,
                                                           const v1::FetchRequest& request) {
  Read read;
  if (group.parameters.size() == group.entries.size()) {
    const bool in_pieces = group.on_device && request.in_pieces() && uses_.pulls.HasRoom(call);
    PinnedForPieces held;
    if (in_pieces) {
      PSD_ASSIGN_OR_RETURN(held, PinForPieces(group.parameters));
    } else {
      PSD_ASSIGN_OR_RETURN(held.pinned,
                           store::Parameter::PinTogether(group.parameters, group.keeper));
    }
    PSD_ASSIGN_OR_RETURN(read.reply, EncodeParameters(uses_.autograd, context, group, held.pinned,
                                                      request.versions()));
    if (!in_pieces) return read;
    const v1::BorrowOffer* const offer = request.has_borrow() ? &request.borrow() : nullptr;
    if (offer != nullptr) read.after = BehindWrites(held.on_devices, uses_.loans->DeviceOf(*offer));
    read.take_back = uses_.pulls.LeaveOut(call, read.reply, held.on_devices, offer,
                                          /*may_lend=*/read.after.event != nullptr);
    return read;
  }
  if (request.versions()) {
    return absl::InvalidArgumentError(
        "value.fetch: versions are asked for, but not all values are parameters");
  }
  PSD_ASSIGN_OR_RETURN(const store::Values values, store::Entry::ReadAll(group.entries));
  PSD_ASSIGN_OR_RETURN(read.reply, uses_.exchange.EncodeReply(call, context, values));
  return read;
}

absl::Status ValueService::ServeAssign(const rpc::Answer<v1::AssignReply>& answer,
                                       rpc::Beside<v1::AssignRequest> fields) {
  PSD_ASSIGN_OR_RETURN(const dist_autograd::Arguments arguments,
                       uses_.exchange.DecodeRequest(*answer.call()));
  const Variable* elements =
      arguments.values.size() == 1 ? arguments.values[0].As<Variable>() : nullptr;
  if (elements == nullptr)
    return absl::InvalidArgumentError("value.assign takes exactly one tensor");
  PSD_ASSIGN_OR_RETURN(const EntryPtr entry, uses_.store.Get(rpc::IdOf(fields.message)));
  PSD_RETURN_IF_ERROR(rref::Authorize(uses_.agent.access(), rpc::AskerOf(*answer.call()),
                                      rpc::Right::kWrite, *entry));
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*answer.call()));
  uses_.changes.Assign(entry, elements->tensor(), [answer](absl::StatusOr<uint64_t> version) {
    if (!version.ok()) return answer(version.status());
    v1::AssignReply reply;
    reply.set_version(*version);
    answer(std::move(reply));
  });
  return absl::OkStatus();
}

absl::StatusOr<v1::ListReply> ValueService::ServeList(const rpc::CallPtr& call,
                                                      v1::ListRequest request) {
  PSD_ASSIGN_OR_RETURN(Listing listing, ListHere(rpc::AskerOf(*call), request.prefix(),
                                                 request.after(), request.limit()));
  v1::ListReply reply;
  reply.set_more(listing.more);
  for (ListedValue& value : listing.values) {
    reply.add_names(std::move(value.name));
    reply.add_kinds(std::move(value.kind));
    reply.add_versions(value.version);
    reply.add_bytes(value.bytes);
  }
  return reply;
}

// ---------------------------------------------------------------- values of this worker

absl::StatusOr<Listing> ValueService::ListHere(const rpc::Asker& asker, const std::string& prefix,
                                               const std::string& after, size_t limit) const {
  PSD_RETURN_IF_ERROR(uses_.agent.access().Authorize(asker, rpc::Right::kList, prefix));
  const size_t page = limit == 0 ? kMaxListPage : std::min(limit, kMaxListPage);
  std::vector<EntryPtr> entries = uses_.store.List(prefix, after, page + 1);
  Listing listing;
  listing.more = entries.size() > page;
  if (listing.more) entries.resize(page);
  listing.values.reserve(entries.size());
  for (const EntryPtr& entry : entries) {
    const Facts facts = FactsOf(*entry).value_or(Facts{});
    listing.values.push_back({entry->name, entry->KindName(), facts.version, facts.bytes});
  }
  return listing;
}

absl::StatusOr<rref::RRef> ValueService::LookupHere(const rpc::Asker& asker, rpc::Right right,
                                                    const std::string& name) const {
  PSD_ASSIGN_OR_RETURN(const EntryPtr entry,
                       rref::FindNamed(uses_.agent.access(), uses_.store, asker, right, name));
  return uses_.rrefs.LocalRRef(entry);
}

absl::StatusOr<std::vector<store::PinnedVersion>> ValueService::PinNamed(
    const rpc::Asker& asker, absl::Span<const std::string> names) const {
  std::vector<store::Parameter*> parameters;
  std::vector<EntryPtr> entries;
  for (const std::string& name : names) {
    PSD_ASSIGN_OR_RETURN(entries.emplace_back(), rref::FindNamed(uses_.agent.access(), uses_.store,
                                                                 asker, rpc::Right::kRead, name));
    if (const auto& parameter = entries.back()->parameter; parameter != nullptr)
      parameters.push_back(parameter.get());
  }
  PSD_ASSIGN_OR_RETURN(std::vector<store::PinnedVersion> pinned,
                       store::Parameter::PinAll(parameters));
  std::vector<store::PinnedVersion> tensors;
  size_t next = 0;
  for (const EntryPtr& entry : entries) {
    const auto* variable = entry->value.As<Variable>();
    if (entry->parameter != nullptr) {
      tensors.push_back(std::move(pinned[next++]));
    } else if (variable != nullptr && variable->ok()) {
      tensors.push_back({variable->tensor(), 0});
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(entry->Label(), " is ", entry->KindName(), ", not a tensor"));
    }
  }
  return tensors;
}

absl::StatusOr<uint64_t> ValueService::VersionHere(const rref::RRef& value) const {
  PSD_ASSIGN_OR_RETURN(const EntryPtr entry, value.local_entry());
  return entry->parameter == nullptr ? 0 : entry->parameter->version();
}

}  // namespace psd::services
