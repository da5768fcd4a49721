#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "client/worker_state.h"
#include "core/base/clock.h"
#include "core/base/collect.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "core/base/host_port.h"
#include "core/base/log.h"
#include "core/base/quoted.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/base/worker_name.h"
#include "core/runtime/runtime.h"
#include "core/runtime/worker_memory.h"
#include "core/services/calls/call_service.h"
#include "core/services/status/info_service.h"
#include "core/services/values/value_service.h"
#include "core/store/parameter.h"

namespace psd {
namespace {

// How often Start logs which owners it waits for.
constexpr absl::Duration kSayEvery = absl::Seconds(3);

absl::Status CheckAddress(const OwnerAddress& owner) {
  return Annotate(ParseHostPortToDial(owner.address).status(),
                  absl::StrCat("the address of ", owner.name));
}

// Logs one line for each owner that has not answered yet.
template <typename Answer>
void LogAwaited(worker::Runtime& runtime, const std::vector<OwnerAddress>& owners,
                const std::vector<Future<Answer>>& answers) {
  std::map<std::string, std::string> troubles;
  for (const rpc::PeerStatus& peer : runtime.agent().Peers())
    troubles[peer.peer.name] = peer.trouble;
  for (size_t i = 0; i < owners.size(); ++i) {
    if (answers[i].IsReady()) continue;
    const std::string& trouble = troubles[owners[i].name];
    const std::string cause = trouble.empty() ? "no answer yet" : trouble;
    runtime.logger().Log(
        LogLevel::kWarning, "owner_awaited",
        absl::StrCat("waiting for ", owners[i].name, " at ", owners[i].address, ": ", cause),
        {{"owner", owners[i].name}, {"address", owners[i].address}, {"cause", cause}});
  }
}

// Waits for the answers of `owners`, and meanwhile logs every few seconds who is awaited. Returns
// the first error as soon as there is one.
template <typename Answer>
absl::StatusOr<std::vector<Answer>> AwaitAll(worker::Runtime& runtime,
                                             const std::vector<OwnerAddress>& owners,
                                             const std::vector<Future<Answer>>& answers) {
  const auto all = CollectAll(answers);
  while (!all.WaitFor(kSayEvery)) LogAwaited(runtime, owners, answers);
  return all.Wait();
}

// Names the owner and the wait in the error of an answer.
template <typename Answer>
Future<Answer> Awaited(Future<Answer> answer, const std::string& wait, const OwnerAddress& owner) {
  const std::string what = absl::StrCat(wait, " ", owner.name, " at ", owner.address);
  return answer.Then([what](const absl::StatusOr<Answer>& got) -> absl::StatusOr<Answer> {
    if (got.ok()) return got;
    return Annotate(got.status(), what);
  });
}

absl::Status CheckOptions(const WorkerOptions& options) {
  PSD_RETURN_IF_ERROR(CheckWorkerName(options.name));
  if (options.default_timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("WorkerOptions::default_timeout is negative; 0 means none");
  }
  if (options.group_rank.has_value() && *options.group_rank >= options.group_size) {
    return WithRemedy(absl::InvalidArgumentError(
                          absl::StrCat("WorkerOptions::group_rank is ", *options.group_rank,
                                       " in a group of ", options.group_size)),
                      "give each trainer a rank below group_size");
  }
  for (const OwnerAddress& owner : options.owners) {
    PSD_RETURN_IF_ERROR(CheckWorkerName(owner.name));
    if (owner.name == options.name) {
      return absl::InvalidArgumentError(
          absl::StrCat("this worker and one of its owners are both called '", owner.name, "'"));
    }
    PSD_RETURN_IF_ERROR(CheckAddress(owner));
  }
  std::set<std::string> devices;
  for (const std::shared_ptr<Device>& device : options.devices) {
    if (device == nullptr) return absl::InvalidArgumentError("WorkerOptions::devices has a null");
    if (devices.insert(device->name()).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("WorkerOptions::devices has two devices called ", device->name()));
  }
  return absl::OkStatus();
}

worker::RuntimeOptions ToRuntimeOptions(const WorkerOptions& options) {
  worker::RuntimeOptions runtime;
  runtime.name = options.name;
  runtime.listen = options.listen;
  runtime.advertise = options.advertise;
  runtime.threads = options.threads;
  runtime.devices = options.devices;
  runtime.shared_memory = options.shared_memory;
  runtime.shared_memory_folder = options.shared_memory_folder;
  runtime.share_devices = options.share_devices;
  runtime.session = options.session;
  runtime.functions = options.functions;
  runtime.logger = options.logger != nullptr ? options.logger : NewStderrLogger(LogLevel::kWarning);
  runtime.memory =
      worker::NewWorkerBudget(options.memory_budget_bytes, options.shared_memory, runtime.logger);
  return runtime;
}

}  // namespace

absl::Status Worker::State::Attach() {
  const absl::Time until = Clock::Steady().Now() + options.start_timeout;
  rpc::CallOptions connect;
  connect.timeout = options.start_timeout;
  connect.wait_for_ready = true;
  std::vector<Future<rpc::PeerInfo>> connected;
  for (const OwnerAddress& owner : options.owners) {
    runtime->agent().AddPeer(owner.name, owner.address);
    connected.push_back(
        Awaited(runtime->agent().Connect(owner.name, connect), "attaching to", owner));
  }
  // An owner that can never be attached to ends the wait for the others.
  PSD_RETURN_IF_ERROR(AwaitAll(*runtime, options.owners, connected).status());
  return options.join ? JoinWorld(until) : absl::OkStatus();
}

absl::Status Worker::State::JoinWorld(absl::Time until) {
  // A timeout of zero would mean no timeout.
  const auto left = [&] {
    rpc::CallOptions call;
    call.timeout = absl::ZeroDuration();
    if (options.start_timeout > absl::ZeroDuration())
      call.timeout = std::max(until - Clock::Steady().Now(), absl::Nanoseconds(1));
    return call;
  };
  std::vector<Future<services::WorkerInfo>> asked;
  for (const OwnerAddress& owner : options.owners) {
    asked.push_back(
        Awaited(runtime->info().Ask(owner.name, left()), "asking for the registrar of", owner));
  }
  PSD_ASSIGN_OR_RETURN(const std::vector<services::WorkerInfo> infos,
                       AwaitAll(*runtime, options.owners, asked));
  std::string registrar, told_by;
  for (size_t i = 0; i < infos.size(); ++i) {
    const std::string& named = infos[i].registrar;
    const std::string& owner = options.owners[i].name;
    if (named.empty()) continue;
    if (!registrar.empty() && registrar != named) {
      return WithRemedy(
          absl::FailedPreconditionError(absl::StrCat(
              told_by, " names ", registrar, " as the registrar, ", owner, " names ", named)),
          "give all owners of a job the same one");
    }
    registrar = named;
    told_by = owner;
  }
  if (registrar.empty()) return absl::OkStatus();
  const auto there =
      std::find_if(options.owners.begin(), options.owners.end(),
                   [&](const OwnerAddress& owner) { return owner.name == registrar; });
  if (there == options.owners.end()) {
    return WithRemedy(absl::FailedPreconditionError(
                          absl::StrCat("the registrar ", registrar, ", named by ", told_by,
                                       ", is not among WorkerOptions::owners")),
                      "add it");
  }
  runtime->peers().SetRegistrar(registrar);
  rpc::JoinOptions join;
  join.registrar = registrar;
  join.role = rpc::WorkerRole::kTrainer;
  join.group_size = options.group_size;
  join.wanted_rank = options.group_rank;
  join.address = runtime->address();
  const std::vector<Future<rpc::Membership>> joined = {
      Awaited(registrar_client->Join(join, left()), "joining the job through", *there)};
  return AwaitAll(*runtime, {*there}, joined).status();
}

rpc::CallOptions Worker::State::ToCallOptions(const CallOptions& call) const {
  rpc::CallOptions result;
  result.timeout = call.timeout.value_or(absl::Nanoseconds(default_timeout_ns.load()));
  return result;
}

absl::StatusOr<Device*> Worker::State::FindDevice(const std::string& name) const {
  std::string known = kCpuName;
  for (const std::shared_ptr<Device>& device : options.devices) {
    if (device->name() == name) return device.get();
    absl::StrAppend(&known, ", ", device->name());
  }
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat("CallOptions::device is ", Quoted(name),
                                                            ", but the devices of ", options.name,
                                                            " are ", known)),
                    "name one of WorkerOptions::devices");
}

absl::StatusOr<Worker::State::CallPlan> Worker::State::Plan(const CallOptions& call) const {
  PSD_RETURN_IF_ERROR(CheckRunning());
  CallPlan plan;
  plan.options = ToCallOptions(call);
  if (plan.options.timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a timeout of ", absl::FormatDuration(plan.options.timeout),
                     "; 0 means no timeout, an unset one means the default timeout"));
  }
  if (call.device != kCpuName) {
    PSD_ASSIGN_OR_RETURN(plan.device, FindDevice(call.device));
  }
  if (call.context == nullptr) return plan;
  PSD_RETURN_IF_ERROR(call.context->CheckUsable());
  plan.context = call.context->state_;
  return plan;
}

absl::Status Worker::State::CheckRunning() const {
  if (!shut_down) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", options.name, " has been shut down"));
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(WorkerOptions options) {
  return StartWithCarrier(nullptr, std::move(options));
}

absl::StatusOr<std::unique_ptr<Worker>> StartWithCarrier(std::shared_ptr<carrier::Carrier> carrier,
                                                         WorkerOptions options) {
  PSD_RETURN_IF_ERROR(CheckOptions(options));
  auto state = std::make_shared<Worker::State>();
  worker::RuntimeOptions runtime = ToRuntimeOptions(options);
  runtime.carrier = std::move(carrier);
  PSD_ASSIGN_OR_RETURN(state->runtime, worker::Runtime::Create(std::move(runtime)));
  state->default_timeout_ns = absl::ToInt64Nanoseconds(options.default_timeout);
  state->options = std::move(options);
  state->registrar_client = std::make_unique<rpc::RegistrarClient>(
      state->runtime->agent(), state->runtime->timers(), state->runtime->logger());
  PSD_RETURN_IF_ERROR(state->runtime->Start());
  PSD_RETURN_IF_ERROR(state->Attach());
  return std::unique_ptr<Worker>(new Worker(std::move(state)));
}

Worker::Worker(std::shared_ptr<State> state) : state_(std::move(state)) {}

Worker::~Worker() {
  Shutdown(absl::ZeroDuration()).IgnoreError();
}

const std::string& Worker::name() const {
  return state_->options.name;
}
int Worker::rank() const {
  return static_cast<int>(state_->registrar_client->membership().rank);
}
std::vector<std::string> Worker::owners() const {
  std::vector<std::string> names;
  for (const OwnerAddress& owner : state_->options.owners) names.push_back(owner.name);
  return names;
}
absl::Status Worker::SetDefaultTimeout(absl::Duration timeout) {
  if (timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a default timeout of ", absl::FormatDuration(timeout), "; 0 means none"));
  }
  state_->default_timeout_ns = absl::ToInt64Nanoseconds(timeout);
  return absl::OkStatus();
}
absl::Duration Worker::default_timeout() const {
  return absl::Nanoseconds(state_->default_timeout_ns.load());
}
absl::StatusOr<std::vector<OwnerAddress>> Worker::JobOwners() {
  PSD_RETURN_IF_ERROR(state_->CheckRunning());
  const rpc::CallOptions call = state_->ToCallOptions({});
  for (const OwnerAddress& owner : state_->options.owners) {
    PSD_ASSIGN_OR_RETURN(services::WorkerInfo info,
                         state_->runtime->info().Ask(owner.name, call).Wait());
    if (info.registrar.empty()) continue;
    PSD_ASSIGN_OR_RETURN(rpc::World world,
                         rpc::AskWorld(state_->runtime->agent(), info.registrar, call).Wait());
    std::vector<OwnerAddress> owners;
    for (const rpc::WorldMember& member : world.members) {
      if (member.role == rpc::WorkerRole::kOwner) owners.push_back({member.name, member.address});
    }
    for (const std::string& name : world.absent_owners) owners.push_back({name, ""});
    return owners;
  }
  return state_->options.owners;
}
worker::Runtime& RuntimeOf(Worker& worker) {
  return *worker.state_->runtime;
}

const std::string& Worker::address() const {
  return state_->runtime->address();
}
ReferenceCounts Worker::ReferenceStats() const {
  const rref::RRefContext::Stats stats = state_->runtime->rrefs().stats();
  ReferenceCounts counts;
  counts.owned = stats.owners;
  counts.forks = stats.forks;
  counts.held = stats.users;
  counts.unconfirmed = stats.pending_users;
  counts.loans = stats.loans;
  counts.releases = stats.releases;
  return counts;
}
ContextCounts Worker::ContextStats() const {
  const dist_autograd::DistAutograd::Stats stats = state_->runtime->autograd().stats();
  return {stats.contexts, stats.running_passes};
}

// ---- values

absl::StatusOr<RRef> Worker::GetOrCreate(const std::string& owner, const std::string& name,
                                         const Program& create, CreateOptions options) {
  PSD_RETURN_IF_ERROR(state_->CheckRunning());
  PSD_RETURN_IF_ERROR(state_->MakeReachable(owner));
  using Hosted = services::ValueService::Hosted;
  return state_->runtime->values()
      .GetOrCreate(owner, name, create, options.requires_grad, state_->ToCallOptions({}),
                   options.rows ? Hosted::kRows : Hosted::kTensor, options.device)
      .Wait();
}

absl::StatusOr<RRef> Worker::Lookup(const std::string& owner, const std::string& name) {
  PSD_RETURN_IF_ERROR(state_->CheckRunning());
  PSD_RETURN_IF_ERROR(state_->MakeReachable(owner));
  return state_->runtime->values().Lookup(owner, name, state_->ToCallOptions({})).Wait();
}

absl::Status Worker::Drop(const std::string& owner, const std::string& name) {
  PSD_RETURN_IF_ERROR(state_->CheckRunning());
  PSD_RETURN_IF_ERROR(state_->MakeReachable(owner));
  return state_->runtime->values().Drop(owner, name, state_->ToCallOptions({})).Wait().status();
}

absl::StatusOr<uint64_t> Worker::Assign(const RRef& rref, const Tensor& elements) {
  PSD_RETURN_IF_ERROR(state_->CheckRunning());
  if (!rref.valid()) return absl::InvalidArgumentError("Assign to an RRef to nothing");
  return state_->runtime->values().Assign(rref, elements, state_->ToCallOptions({})).Wait();
}

absl::StatusOr<std::vector<ValueInfo>> Worker::List(const std::string& owner,
                                                    const std::string& prefix) {
  PSD_RETURN_IF_ERROR(state_->CheckRunning());
  PSD_RETURN_IF_ERROR(state_->MakeReachable(owner));
  auto listing = state_->runtime->values().List(owner, prefix, state_->ToCallOptions({}));
  PSD_RETURN_IF_ERROR(listing.Wait());
  std::vector<ValueInfo> values;
  for (const services::ListedValue& value : *listing.Wait()) {
    values.push_back({value.name, value.kind, value.version, value.bytes});
  }
  return values;
}

Future<std::vector<Value>> Worker::ToHereAsync(const std::vector<RRef>& rrefs,
                                               const CallOptions& options) {
  auto plan = state_->Plan(options);
  if (!plan.ok()) return Future<Values>::Ready(plan.status());
  return state_->runtime->values().Fetch(rrefs, plan->context, plan->options, plan->device);
}

absl::StatusOr<std::vector<Value>> Worker::ToHere(const std::vector<RRef>& rrefs,
                                                  const CallOptions& options) {
  PSD_ASSIGN_OR_RETURN(const State::CallPlan plan, state_->Plan(options));
  return state_->runtime->values().FetchAndWait(rrefs, plan.context, plan.options, plan.device);
}

absl::StatusOr<std::vector<Variable>> Worker::ToHere(const std::vector<RRef>& rrefs,
                                                     const Context& context) {
  CallOptions options;
  options.context = &context;
  PSD_ASSIGN_OR_RETURN(Values fetched, ToHere(rrefs, options));
  std::vector<Variable> variables;
  variables.reserve(rrefs.size());
  for (Value& value : fetched) {
    auto* variable = value.As<Variable>();
    if (variable == nullptr) {
      return WithRemedy(
          absl::InvalidArgumentError(absl::StrCat(rrefs[variables.size()].ToString(), " is ",
                                                  value.KindName(), ", not a tensor")),
          "fetch it with ToHere(rrefs, CallOptions)");
    }
    variables.push_back(std::move(*variable));
  }
  return variables;
}

absl::StatusOr<std::vector<PulledParameter>> Worker::Pull(const std::vector<RRef>& rrefs,
                                                          const CallOptions& options) {
  PSD_ASSIGN_OR_RETURN(const State::CallPlan plan, state_->Plan(options));
  if (plan.context != nullptr) {
    return WithRemedy(absl::InvalidArgumentError("Pull records nothing"),
                      "fetch with ToHere in a context");
  }
  auto pulling = state_->runtime->values().Pull(rrefs, plan.options, plan.device);
  PSD_RETURN_IF_ERROR(pulling.Wait());
  std::vector<PulledParameter> pulled;
  pulled.reserve(rrefs.size());
  for (const store::PinnedVersion& version : *pulling.Wait()) {
    pulled.push_back({version.tensor, version.version});
  }
  return pulled;
}

// ---- calls

absl::StatusOr<Value> Worker::LocalValue(const RRef& rref) const {
  PSD_RETURN_IF_ERROR(state_->CheckRunning());
  if (!rref.valid()) return absl::InvalidArgumentError("LocalValue of an RRef to nothing");
  if (rref.is_owner()) {
    PSD_RETURN_IF_ERROR(rref.made().Wait());
    PSD_ASSIGN_OR_RETURN(const store::EntryPtr entry, rref.local_entry());
    return entry->Read();
  }
  return WithRemedy(
      absl::FailedPreconditionError(absl::StrCat(rref.ToString(), " has no local value on ", name(),
                                                 ": its owner is ", rref.owner())),
      "fetch it with ToHere");
}

Future<Values> Worker::RpcAsync(const Callee& callee, const Function& function,
                                const Values& arguments, const CallOptions& options) {
  auto plan = state_->Plan(options);
  if (!plan.ok()) return Future<Values>::Ready(plan.status());
  absl::StatusOr<std::string> name = state_->Resolve(callee);
  if (!name.ok()) return Future<Values>::Ready(name.status());
  return state_->runtime->calls().Run(*name, function, arguments, plan->context, plan->options,
                                      plan->device);
}

absl::StatusOr<Values> Worker::RpcSync(const Callee& callee, const Function& function,
                                       const Values& arguments, const CallOptions& options) {
  return RpcAsync(callee, function, arguments, options).Wait();
}

absl::StatusOr<RRef> Worker::Remote(const Callee& callee, const Function& function,
                                    const Values& arguments, const CallOptions& options) {
  PSD_ASSIGN_OR_RETURN(const State::CallPlan plan, state_->Plan(options));
  PSD_ASSIGN_OR_RETURN(const std::string name, state_->Resolve(callee));
  return state_->runtime->calls().Remote(name, function, arguments, plan.context, plan.options);
}

// ---- contexts, statistics and shutdown

absl::StatusOr<Context> Worker::NewContext() {
  PSD_RETURN_IF_ERROR(state_->CheckRunning());
  return Context(state_, state_->runtime->autograd().NewContext());
}

}  // namespace psd
