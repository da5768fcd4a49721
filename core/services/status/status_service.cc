#include "core/services/status/status_service.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/version.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/rpc/declared_method.h"
#include "core/store/rows.h"

namespace psd::services {
namespace {

constexpr rpc::Declared<v1::StatusRequest, v1::WorkerStatus> kStatus{
    {"worker.status", rpc::MethodKind::kRead, rpc::RunsOn::kExecutor}};

void AddNumbers(const StatusService::Uses& uses, v1::WorkerStatus& status) {
  const store::Store::Stats store = uses.store.stats();
  status.mutable_memory()->set_used_bytes(store.used_bytes);
  status.mutable_memory()->set_budget_bytes(uses.memory.limit_bytes());
  status.mutable_memory()->set_transit_bytes(uses.memory.transit()->used_bytes());
  status.set_named_values(store.named);

  const ThreadPool::Stats pool = uses.executor.stats();
  v1::ExecutorStatus& executor = *status.mutable_executor();
  executor.set_threads(static_cast<uint32_t>(pool.threads));
  executor.set_idle(static_cast<uint32_t>(pool.idle));
  executor.set_blocked(static_cast<uint32_t>(pool.blocked));
  executor.set_queued(pool.queued);

  const rref::RRefContext::Stats rrefs = uses.rrefs.stats();
  v1::ReferenceStatus& references = *status.mutable_references();
  references.set_anonymous_values(store.anonymous);
  references.set_owners(rrefs.owners);
  references.set_forks(rrefs.forks);
  references.set_users(rrefs.users);
  references.set_pending_users(rrefs.pending_users);

  status.set_programs_cached(uses.programs.size());
}

void AddDevices(const StatusService::Uses& uses, v1::WorkerStatus& status) {
  for (const std::shared_ptr<Device>& device : uses.store.devices()) {
    v1::DeviceStatus& state = *status.add_devices();
    state.set_name(device->name());
    state.set_used_bytes(device->used_bytes());
    state.set_budget_bytes(device->budget_bytes());
    state.set_lost(std::string(device->health().message()));
  }
}

void AddPeers(const StatusService::Uses& uses, v1::WorkerStatus& status) {
  for (const rpc::PeerStatus& peer : uses.agent.Peers()) {
    v1::PeerState& state = *status.add_peers();
    state.set_name(peer.peer.name);
    state.set_incarnation(peer.peer.incarnation);
    state.set_address(peer.address);
    state.set_connected(peer.connected);
    state.set_link(peer.link);
    state.set_why_not_shared(peer.why_not_shared);
    state.set_device_memory(uses.loans.HowServed(peer.peer.incarnation));
    state.set_epoch_here(peer.epoch_here);
    state.set_epoch_there(peer.epoch_there);
    state.set_lease_left_s(absl::ToDoubleSeconds(std::max(peer.lease_left, absl::ZeroDuration())));
    state.set_calls_pending(peer.calls_pending);
    state.set_calls_serving(peer.calls_serving);
    state.set_answers_remembered(peer.answers_remembered);
  }
}

void AddParameter(const store::Parameter& parameter, v1::NamedValue& value) {
  const store::Parameter::Stats stats = parameter.stats();
  value.set_kind("parameter");
  value.set_dtype(std::string(DTypeName(parameter.dtype())));
  for (int64_t extent : parameter.shape().extents()) value.add_shape(extent);
  value.set_version(parameter.version());
  value.set_bytes(stats.bytes);
  value.set_requires_grad(parameter.requires_grad());
  value.set_old_versions_pinned(static_cast<uint32_t>(stats.old_pinned));
  value.set_device(std::string(DeviceName(parameter.device())));
}

void AddRows(const store::Rows& rows, v1::NamedValue& value) {
  value.set_kind("rows");
  value.set_dtype(std::string(DTypeName(rows.dtype())));
  for (int64_t extent : rows.shape().extents()) value.add_shape(extent);
  value.set_version(rows.version());
  value.set_bytes(rows.bytes());
  value.set_requires_grad(rows.requires_grad());
  value.set_device(std::string(DeviceName(rows.device())));
}

// Returns the options of all groups and the settings as text.
std::string DescribeOptions(const optim::OwnerOptimizer& optimizer) {
  std::string text;
  for (size_t group = 0; group < optimizer.num_groups(); ++group) {
    const auto options = optimizer.options(group);
    if (!options.ok()) break;
    absl::StrAppend(&text, text.empty() ? "" : "; ", options->spec.ToString());
  }
  return absl::StrCat(text, optimizer.settings().ToString());
}

void AddOptimizer(const std::string& name, const optim::OwnerOptimizer& optimizer, size_t limit,
                  v1::WorkerStatus& status) {
  const optim::OwnerOptimizer::Stats stats = optimizer.stats();
  v1::OptimizerState& state = *status.add_optimizers();
  state.set_name(name);
  state.set_spec(DescribeOptions(optimizer));
  state.set_parameters(optimizer.table().size());
  state.set_steps(stats.steps);
  state.set_max_staleness(stats.max_staleness);
  state.set_mean_staleness(stats.mean_staleness);
  state.set_state_bytes(stats.state_bytes);
  state.set_skipped(stats.skipped);
  state.set_loss_scale(stats.loss_scale);
  state.set_members(stats.members);
  state.set_waiting(stats.waiting);
  for (const optim::ParameterStaleness& each : optimizer.staleness(limit)) {
    v1::ParameterStaleness& staleness = *state.add_staleness();
    staleness.set_parameter(each.parameter);
    staleness.set_last(each.last);
    staleness.set_most(each.most);
    staleness.set_mean(each.mean);
    staleness.set_steps(each.steps);
  }
}

void AddValues(const StatusService::Uses& uses, size_t limit, v1::WorkerStatus& status) {
  for (const store::EntryPtr& entry : uses.store.List("", {}, limit)) {
    v1::NamedValue& value = *status.add_values();
    value.set_name(entry->name);
    if (entry->parameter != nullptr) {
      AddParameter(*entry->parameter, value);
      continue;
    }
    if (const auto rows = store::AsRows(entry->value); rows != nullptr) {
      AddRows(*rows, value);
      continue;
    }
    value.set_kind(entry->KindName());
    const auto* object = entry->value.As<std::shared_ptr<store::Object>>();
    if (object == nullptr) value.set_device(kCpuName);
    auto optimizer =
        object == nullptr ? nullptr : std::dynamic_pointer_cast<optim::OwnerOptimizer>(*object);
    if (optimizer == nullptr) continue;
    value.set_bytes(optimizer->stats().state_bytes);
    AddOptimizer(entry->name, *optimizer, limit, status);
  }
}

void AddContexts(const StatusService::Uses& uses, size_t limit, v1::WorkerStatus& status) {
  std::vector<std::shared_ptr<dist_autograd::ContextState>> contexts = uses.autograd.Contexts();
  status.set_contexts_held(contexts.size());
  if (contexts.size() > limit) contexts.resize(limit);
  for (const auto& context : contexts) {
    const dist_autograd::ContextState::Stats stats = context->stats();
    v1::ContextEntry& entry = *status.add_contexts();
    entry.set_incarnation(context->id().incarnation);
    entry.set_counter(context->id().counter);
    entry.set_sends(stats.sends);
    entry.set_gradients(stats.gradients);
    entry.set_gradient_bytes(stats.gradient_bytes);
    entry.set_known_workers(stats.known_workers);
  }
}

}  // namespace

StatusService::StatusService(Uses uses) : uses_(std::move(uses)), started_(uses_.clock.Now()) {
  rpc::Serve(uses_.agent, kStatus, this, &StatusService::ServeStatus);
}

absl::StatusOr<v1::WorkerStatus> StatusService::ServeStatus(const rpc::CallPtr& call,
                                                            v1::StatusRequest request) {
  return CollectFor(rpc::AskerOf(*call), request);
}

absl::StatusOr<v1::WorkerStatus> StatusService::CollectFor(const rpc::Asker& asker,
                                                           const v1::StatusRequest& request) const {
  PSD_RETURN_IF_ERROR(
      uses_.agent.access().Authorize(asker, rpc::Right::kInspect, uses_.agent.self().name));
  return Collect(request);
}

v1::WorkerStatus StatusService::Collect(const v1::StatusRequest& request) const {
  const size_t limit =
      request.limit() == 0 ? kDefaultLimit : std::min<size_t>(request.limit(), kMaxLimit);
  v1::WorkerStatus status;
  status.set_name(uses_.agent.self().name);
  status.set_incarnation(uses_.agent.self().incarnation);
  status.set_address(uses_.address);
  status.set_version(kVersion);
  status.set_uptime_s(absl::ToDoubleSeconds(uses_.clock.Now() - started_));
  status.set_registrar(uses_.peers.registrar());
  status.set_hosts_nothing(uses_.agent.access().refuses_hosting());
  AddNumbers(uses_, status);
  AddDevices(uses_, status);
  AddPeers(uses_, status);
  AddValues(uses_, limit, status);
  AddContexts(uses_, limit, status);
  return status;
}

}  // namespace psd::services
