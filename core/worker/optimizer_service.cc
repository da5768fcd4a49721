#include "core/worker/optimizer_service.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/worker/runtime.h"
#include "core/worker/value_service.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::worker {
namespace {

using optim::OptimizerSpec;
using optim::OwnerOptimizer;
using rref::RRef;
using store::EntryPtr;

// Below this many elements a step is cheaper than handing it to another thread.
constexpr int64_t kInlineElements = 512 * 1024;

// What creators of one name must agree on.
std::string Agreement(const OptimizerSpec& spec, const std::vector<EntryPtr>& parameters) {
  std::string text = absl::StrCat(spec.ToString(), " over");
  for (const EntryPtr& parameter : parameters) {
    absl::StrAppend(&text, " ",
                    parameter->name.empty() ? parameter->id.ToString() : parameter->name);
  }
  return text;
}

OptimizerSpec SpecOf(const v1::CreateOptimizerRequest& request) {
  OptimizerSpec spec;
  spec.type = request.type();
  int options = std::min(request.option_names_size(), request.option_values_size());
  for (int i = 0; i < options; ++i) {
    spec.options[request.option_names(i)] = request.option_values(i);
  }
  return spec;
}

absl::StatusOr<std::shared_ptr<OwnerOptimizer>> FindOptimizer(store::Store& store, GlobalId id) {
  PSD_ASSIGN_OR_RETURN(EntryPtr entry, store.Get(id));
  const auto* object = entry->value.As<std::shared_ptr<store::Object>>();
  auto optimizer = object == nullptr ? nullptr : std::dynamic_pointer_cast<OwnerOptimizer>(*object);
  if (optimizer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(entry->name.empty() ? id.ToString() : entry->name, " is ", entry->KindName(),
                     ", not an optimizer"));
  }
  return optimizer;
}

}  // namespace

OptimizerService::OptimizerService(Runtime& runtime) : runtime_(runtime) {
  runtime_.RegisterMethod({"optimizer.create", rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor,
                           [this](CallPtr call) { ServeCreate(call); }});
  runtime_.RegisterMethod({"optimizer.step", rpc::MethodKind::kMutation,
                           rpc::RunsOn::kCarrierThread, [this](CallPtr call) { ServeStep(call); }});
}

// ---- callee

void OptimizerService::ServeCreate(const CallPtr& call) {
  auto request = ParseMessage<v1::CreateOptimizerRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  int size = std::min(request->parameter_incarnations_size(), request->parameter_counters_size());
  std::vector<EntryPtr> parameters;
  for (int i = 0; i < size; ++i) {
    auto entry =
        runtime_.store().Get({request->parameter_incarnations(i), request->parameter_counters(i)});
    if (!entry.ok()) return call->Reply(entry.status());
    parameters.push_back(*std::move(entry));
  }
  auto function = runtime_.optimizers().Create(SpecOf(*request));
  if (!function.ok()) return call->Reply(function.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before creation"));
  std::string agreement = Agreement((*function)->spec(), parameters);
  auto create = [this, function = std::move(*function),
                 parameters = std::move(parameters)]() mutable -> absl::StatusOr<store::Value> {
    std::vector<optim::ParameterGroup> groups(1);
    groups[0] = {std::move(function), std::move(parameters)};
    PSD_ASSIGN_OR_RETURN(auto optimizer,
                         OwnerOptimizer::Create(std::move(groups), runtime_.store()));
    return store::Value(std::shared_ptr<store::Object>(std::move(optimizer)));
  };
  if (request->name().empty()) {
    auto value = create();
    if (!value.ok()) return call->Reply(value.status());
    auto entry = runtime_.store().Put(*std::move(value), /*requires_grad=*/false);
    if (!entry.ok()) return call->Reply(entry.status());
    return call->Reply(ReferenceReply(runtime_, *call, *entry));
  }
  store::CreateOptions options;
  options.creation = std::move(agreement);
  runtime_.store()
      .GetOrCreate(request->name(), options, std::move(create))
      .OnReady([this, call](const absl::StatusOr<EntryPtr>& entry) {
        if (!entry.ok()) return call->Reply(entry.status());
        call->Reply(ReferenceReply(runtime_, *call, *entry));
      });
}

void OptimizerService::ServeStep(const CallPtr& call) {
  auto request = ParseMessage<v1::StepRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto optimizer = FindOptimizer(runtime_.store(),
                                 {request->optimizer_incarnation(), request->optimizer_counter()});
  if (!optimizer.ok()) return call->Reply(optimizer.status());
  auto context =
      runtime_.autograd().Find({request->context_incarnation(), request->context_counter()});
  if (!context.ok()) return call->Reply(context.status());

  // Gradients of other optimizers' parameters may be in the same context.
  std::vector<dist_autograd::LeafGradient> collected = (*context)->Gradients();
  std::vector<optim::ParameterGradient> gradients;
  gradients.reserve(collected.size());
  int64_t elements = 0;
  size_t next = 0;
  for (dist_autograd::LeafGradient& leaf : collected) {
    const std::optional<size_t> index = (*optimizer)->table().Find(leaf.leaf.key, next);
    if (!index.has_value()) continue;
    next = *index + 1;
    elements += leaf.gradient.NumElements();
    gradients.push_back({leaf.leaf.key, std::move(leaf.gradient), leaf.leaf.version});
  }
  GlobalId step{request->step_incarnation(), request->step_counter()};
  auto run = [call, optimizer = *std::move(optimizer), step,
              gradients = std::move(gradients)]() mutable {
    optimizer->Step(
        step, std::move(gradients), [call] { return call->BeginApply(); },
        [call](absl::StatusOr<optim::StepResult> result) {
          if (!result.ok()) return call->Reply(result.status());
          v1::StepReply reply;
          reply.set_steps_accepted(result->steps_accepted);
          reply.set_parameters_stepped(static_cast<uint32_t>(result->parameters_stepped));
          reply.set_max_staleness(result->max_staleness);
          reply.set_repeated_step(result->repeated);
          call->Reply(PlainPayload(reply));
        });
  };
  if (elements <= kInlineElements) return run();
  absl::Status queued = runtime_.executor().Submit(std::move(run));
  if (!queued.ok()) call->Reply(queued);
}

// ---- caller

Future<RRef> OptimizerService::Create(const std::string& owner, const std::string& name,
                                      const OptimizerSpec& spec,
                                      const std::vector<RRef>& parameters,
                                      const rpc::CallOptions& options) {
  v1::CreateOptimizerRequest message;
  message.set_name(name);
  message.set_type(spec.type);
  for (const auto& [option, value] : spec.options) {
    message.add_option_names(option);
    message.add_option_values(value);
  }
  for (const RRef& parameter : parameters) {
    absl::Status usable = runtime_.rrefs().CheckUsable(parameter);
    if (!usable.ok()) return Future<RRef>::Ready(usable);
    message.add_parameter_incarnations(parameter.value_id().incarnation);
    message.add_parameter_counters(parameter.value_id().counter);
  }
  rpc::Request request = PlainRequest("optimizer.create", message);
  if (!parameters.empty()) {
    request.only_incarnation = parameters[0].body()->owner_incarnation();
  }
  return runtime_.agent()
      .StartCall(owner, std::move(request), options)
      .reply()
      .Then([this, owner](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<RRef> {
        if (!reply.ok()) return reply.status();
        return AdoptReference(runtime_, owner, *reply);
      });
}

Future<optim::StepResult> OptimizerService::Step(const RRef& optimizer, GlobalId context,
                                                 GlobalId step, const rpc::CallOptions& options) {
  absl::Status usable = runtime_.rrefs().CheckUsable(optimizer);
  if (!usable.ok()) return Future<optim::StepResult>::Ready(usable);
  v1::StepRequest message;
  message.set_optimizer_incarnation(optimizer.value_id().incarnation);
  message.set_optimizer_counter(optimizer.value_id().counter);
  message.set_context_incarnation(context.incarnation);
  message.set_context_counter(context.counter);
  message.set_step_incarnation(step.incarnation);
  message.set_step_counter(step.counter);
  rpc::Request request = PlainRequest("optimizer.step", message);
  request.only_incarnation = optimizer.body()->owner_incarnation();
  return runtime_.agent()
      .StartCall(optimizer.owner(), std::move(request), options)
      .reply()
      .Then([](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<optim::StepResult> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(auto message,
                             ParseMessage<v1::StepReply>(reply->payload.header, "optimizer.step"));
        optim::StepResult result;
        result.steps_accepted = message.steps_accepted();
        result.parameters_stepped = static_cast<int>(message.parameters_stepped());
        result.max_staleness = message.max_staleness();
        result.repeated = message.repeated_step();
        return result;
      });
}

}  // namespace psd::worker
