#include "core/services/gradients/gradient_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/dist_autograd/context.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/message_io.h"
#include "core/rref/authorize.h"
#include "core/store/parameter.h"
#include "core/store/rows.h"
#include "core/store/value.h"
#include "core/tensor/sparse_tensor.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {

using rref::RRef;
using store::Value;

namespace {

// The reply has one value: a tensor or a sparse tensor.
constexpr rpc::Declared<v1::GradientRequest, rpc::Contents> kFetch{
    {"gradient.fetch", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};
// The payload of the request has one tensor.
constexpr rpc::Declared<rpc::Beside<v1::PushedGradient>, Unit> kPush{
    {"gradient.push", rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor}};

absl::Status AddGradient(dist_autograd::ContextState& context, const store::Entry& entry,
                         uint64_t version, Tensor gradient) {
  const auto& parameter = entry.parameter;
  if (parameter == nullptr || !parameter->requires_grad()) {
    return absl::InvalidArgumentError(absl::StrCat(entry.Label(), " is ", entry.KindName(),
                                                   ", not a parameter that requires grad"));
  }
  if (gradient.shape() != parameter->shape() || gradient.dtype() != parameter->dtype()) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient of ", entry.Label(), ": expected ", DTypeName(parameter->dtype()),
                     parameter->shape().ToString(), ", got ", gradient.ToString()));
  }
  if (version > parameter->version()) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient of ", entry.Label(), ": computed from version ", version,
                     ", but the parameter is at version ", parameter->version()));
  }
  return context.Accumulate({parameter->id(), parameter->shape(), parameter->dtype(), version},
                            std::move(gradient));
}

}  // namespace

GradientService::GradientService(Uses uses) : uses_(std::move(uses)) {
  rpc::Serve(uses_.agent, kFetch, this, &GradientService::ServeFetch);
  rpc::Serve(uses_.agent, kPush, this, &GradientService::ServePush);
}

Future<Value> GradientService::Fetch(GlobalId context, const RRef& leaf,
                                     const rpc::CallOptions& options) {
  return uses_.creations.After<Value>({leaf}, options,
                                      [this, context, leaf](const rpc::CallOptions& left) {
                                        return SendFetch(context, leaf, left);
                                      });
}

Future<Value> GradientService::SendFetch(GlobalId context, const RRef& leaf,
                                         const rpc::CallOptions& options) {
  absl::Status usable = uses_.rrefs.CheckUsable(leaf);
  if (!usable.ok()) return Future<Value>::Ready(usable);
  v1::GradientRequest message;
  message.set_context_incarnation(context.incarnation);
  message.set_context_counter(context.counter);
  message.set_leaf_incarnation(leaf.value_id().incarnation);
  message.set_leaf_counter(leaf.value_id().counter);
  return rpc::Ask(uses_.agent, kFetch,
                  {leaf.owner(), leaf.body()->owner_incarnation(), /*session_bound=*/true}, message,
                  options)
      .Then([this, leaf](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<Value> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(store::Values values, uses_.exchange.DecodeReply(nullptr, *reply));
        if (values.size() != 1 ||
            (values[0].As<Variable>() == nullptr && values[0].AsSparse() == nullptr)) {
          return absl::InternalError(absl::StrCat(leaf.owner(), " answered no gradient"));
        }
        return values[0];
      });
}

Future<Unit> GradientService::Push(const dist_autograd::ContextPtr& context, const RRef& parameter,
                                   uint64_t version, const Tensor& gradient,
                                   const rpc::CallOptions& options) {
  return uses_.creations.After<Unit>(
      {parameter}, options,
      [this, context, parameter, version, gradient](const rpc::CallOptions& left) {
        return SendPush(context, parameter, version, gradient, left);
      });
}

Future<Unit> GradientService::SendPush(const dist_autograd::ContextPtr& context,
                                       const RRef& parameter, uint64_t version,
                                       const Tensor& gradient, const rpc::CallOptions& options) {
  absl::Status usable = uses_.rrefs.CheckUsable(parameter);
  if (!usable.ok()) return Future<Unit>::Ready(usable);
  auto request =
      uses_.exchange.EncodeRequest(kPush.info.name, parameter.owner(), {Value(gradient)}, context);
  if (!request.ok()) return Future<Unit>::Ready(request.status());
  v1::PushedGradient fields;
  fields.set_incarnation(parameter.value_id().incarnation);
  fields.set_counter(parameter.value_id().counter);
  fields.set_version(version);
  request->attachments.push_back(rpc::FieldsAttachment(fields));
  return rpc::Ask(uses_.agent, kPush, {parameter.owner(), parameter.body()->owner_incarnation()},
                  *std::move(request), options)
      .Then([parameter](const absl::StatusOr<Unit>& pushed) { return pushed.status(); });
}

absl::Status GradientService::ServePush(const rpc::CallPtr& call,
                                        rpc::Beside<v1::PushedGradient> fields) {
  PSD_ASSIGN_OR_RETURN(dist_autograd::Arguments arguments, uses_.exchange.DecodeRequest(*call));
  const Variable* gradient =
      arguments.values.size() == 1 ? arguments.values[0].As<Variable>() : nullptr;
  if (arguments.context == nullptr || gradient == nullptr) {
    return absl::InvalidArgumentError("gradient.push takes exactly one tensor, in a context");
  }
  PSD_ASSIGN_OR_RETURN(auto entry, uses_.store.Get(rpc::IdOf(fields.message)));
  PSD_RETURN_IF_ERROR(
      rref::Authorize(uses_.agent.access(), rpc::AskerOf(*call), rpc::Right::kWrite, *entry));
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*call));
  return AddGradient(*arguments.context, *entry, fields.message.version(), gradient->tensor());
}

absl::Status GradientService::PushHere(const rpc::Asker& asker,
                                       dist_autograd::ContextState& context,
                                       const std::string& parameter, uint64_t version,
                                       Tensor gradient) const {
  PSD_ASSIGN_OR_RETURN(
      const store::EntryPtr entry,
      rref::FindNamed(uses_.agent.access(), uses_.store, asker, rpc::Right::kWrite, parameter));
  return AddGradient(context, *entry, version, std::move(gradient));
}

absl::Status GradientService::WhyNone(GlobalId leaf, const absl::Status& none) const {
  PSD_ASSIGN_OR_RETURN(const store::EntryPtr entry, uses_.store.Get(leaf));
  const auto rows = store::AsRows(entry->value);
  const bool collects = entry->parameter != nullptr ? entry->parameter->requires_grad()
                                                    : rows != nullptr && rows->requires_grad();
  if (collects) return Annotate(none, entry->Label());
  return absl::InvalidArgumentError(
      absl::StrCat(entry->Label(), " is ", entry->KindName(),
                   ", for which no gradient is collected: only parameters and tables that were "
                   "created with requires_grad have one"));
}

absl::Status GradientService::ServeFetch(const rpc::Answer<rpc::Contents>& answer,
                                         v1::GradientRequest request) {
  const rpc::CallPtr& call = answer.call();
  const GlobalId id{request.context_incarnation(), request.context_counter()};
  const GlobalId leaf{request.leaf_incarnation(), request.leaf_counter()};
  // A value that is gone has no name to ask about; its gradient belongs only to the context that
  // used it.
  if (const auto entry = uses_.store.Get(leaf); entry.ok()) {
    PSD_RETURN_IF_ERROR(
        rref::Authorize(uses_.agent.access(), rpc::AskerOf(*call), rpc::Right::kRead, **entry));
  }
  auto context = uses_.autograd.Find(id);
  if (!context.ok()) {
    return absl::NotFoundError(absl::StrCat(
        "autograd context ", id.ToString(), " never reached ", uses_.agent.self().name,
        " (or was released there): nothing of ", uses_.agent.self().name, " was used in it"));
  }
  const bool light = !(*context)->HasDeviceGradients();
  rpc::RunBySize(uses_.executor, light, answer, [this, call, context = *context, leaf] {
    return ReadGradient(*call, *context, leaf);
  });
  return absl::OkStatus();
}

absl::StatusOr<rpc::Contents> GradientService::ReadGradient(
    rpc::ServerCall& call, const dist_autograd::ContextState& context, GlobalId leaf) const {
  const auto gradient = context.Gradient(leaf);
  if (!gradient.ok()) return WhyNone(leaf, gradient.status());
  if (gradient->gradient.defined())
    return uses_.exchange.EncodeReply(call, nullptr, {Value(gradient->gradient)});
  PSD_ASSIGN_OR_RETURN(auto sparse, ConcatSparse(gradient->sparse));
  return uses_.exchange.EncodeReply(call, nullptr, {Value(std::move(sparse))});
}

}  // namespace psd::services
