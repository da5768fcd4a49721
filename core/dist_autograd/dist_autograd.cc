#include "core/dist_autograd/dist_autograd.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/autograd/engine.h"
#include "core/base/faults.h"
#include "core/base/status.h"
#include "core/dist_autograd/autograd_codec.h"
#include "core/dist_autograd/context_table.h"
#include "core/dist_autograd/graph_walk.h"
#include "core/dist_autograd/pass.h"
#include "core/rpc/draining.h"
#include "core/rref/gate.h"
#include "core/rref/value_codec.h"

namespace psd::dist_autograd {
namespace {

using rref::Gate;
using CallPtr = std::shared_ptr<rpc::ServerCall>;

constexpr absl::Duration kReleaseTimeout = absl::Seconds(60);

std::vector<Variable> Constants(std::vector<Tensor> tensors) {
  std::vector<Variable> variables;
  variables.reserve(tensors.size());
  for (Tensor& tensor : tensors) variables.emplace_back(std::move(tensor));
  return variables;
}

const std::string* AttachmentOf(const rpc::Reply& reply) {
  for (const rpc::Attachment& attachment : reply.attachments) {
    if (attachment.tag == DistAutograd::kTag) return &attachment.bytes;
  }
  return nullptr;
}

}  // namespace

// The state and methods of DistAutograd. Shared by it, its passes and the agent's callbacks.
class DistAutograd::Core : public PassHost, public std::enable_shared_from_this<Core> {
 public:
  Core(rpc::RpcAgent& agent, IdSource& ids, TimerQueue& timers, Executor& executor,
       std::shared_ptr<MemoryBudget> memory)
      : agent_(agent),
        ids_(ids),
        timers_(timers),
        executor_(executor),
        self_(agent.self()),
        table_(agent.self(), ids, std::move(memory)) {}

  void Register();
  void Close();

  ContextTable& table() { return table_; }
  IdSource& ids() { return ids_; }
  void Release(GlobalId context, const std::string& source);
  absl::StatusOr<std::string> Describe(ContextState& context,
                                       const std::vector<Variable>& variables);
  absl::StatusOr<std::vector<Variable>> Receive(ContextState& context, const rpc::PeerInfo& sender,
                                                const MessageInfo& info,
                                                std::vector<Tensor> tensors);
  Future<Unit> Start(const std::shared_ptr<ContextState>& context,
                     absl::StatusOr<std::vector<Root>> roots, const BackwardOptions& options);

  // The functions of PassHost.
  const rpc::PeerInfo& self() const override { return self_; }
  Future<rpc::Reply> Send(const std::string& peer, rpc::Request request,
                          absl::Duration timeout) override {
    Gate::Entry entry(gate_);
    if (!entry.open()) {
      return Future<rpc::Reply>::Ready(absl::CancelledError(absl::StrCat(self_.name, " is going")));
    }
    rpc::CallOptions options;
    options.timeout = timeout;
    return agent_.StartCall(peer, std::move(request), options).reply();
  }
  TimerQueue::Id RunAfter(absl::Duration delay, Task task) override {
    Gate::Entry entry(gate_);
    return entry.open() ? timers_.RunAfter(delay, std::move(task)) : 0;
  }
  void CancelTimer(TimerQueue::Id id) override {
    Gate::Entry entry(gate_);
    if (entry.open() && id != 0) timers_.Cancel(id);
  }
  absl::Status RunOnExecutor(const rpc::ServerCall& call, Task task) override {
    return Submit(rpc::LabelOf(WorkLabel::Kind::kOwn, call), std::move(task));
  }
  absl::Status RunOwn(Task task) override {
    return Submit({WorkLabel::Kind::kOwn, {}}, std::move(task));
  }
  void PassEnded(const Pass& pass) override {
    table_.EndPass(pass.info().context, pass.info().pass);
  }

 private:
  absl::Status Submit(const WorkLabel& label, Task task) {
    Gate::Entry entry(gate_);
    if (!entry.open()) return absl::CancelledError(absl::StrCat(self_.name, " is going"));
    return executor_.SubmitAs(label, std::move(task));
  }
  absl::StatusOr<std::shared_ptr<Pass>> Join(const PassInfo& info);
  void OnGradient(const CallPtr& call);
  absl::Status TakeGradient(const CallPtr& call);
  void OnMark(const CallPtr& call);
  void OnAbort(const CallPtr& call);
  void OnRelease(const CallPtr& call);
  void OnSessionEnded(const rpc::PeerInfo& peer, uint64_t epoch);
  // Ends the passes that wait for gradients of other workers, because no more of them come.
  void Drain();
  absl::Status Draining() const { return rpc::DrainingError(self_.name, "the backward pass"); }
  void Finish(const ContextTable::Erased& erased, const std::string& source);

  rpc::RpcAgent& agent_;  // this and the next three members are used only inside the gate
  IdSource& ids_;
  TimerQueue& timers_;
  Executor& executor_;
  const rpc::PeerInfo self_;
  ContextTable table_;
  Gate gate_;
  std::atomic<bool> draining_{false};
};

void DistAutograd::Core::Register() {
  auto add = [this](const char* name, void (Core::*serve)(const CallPtr&)) {
    // These methods run on the carrier's thread and pass the work of large graphs to the executor.
    agent_.RegisterMethod(
        {name, rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread,
         [core = shared_from_this(), serve](CallPtr call) { (core.get()->*serve)(call); }});
  };
  add("autograd.gradient", &Core::OnGradient);
  add("autograd.mark", &Core::OnMark);
  add("autograd.abort", &Core::OnAbort);
  add("autograd.release", &Core::OnRelease);
  agent_.OnSessionEnded([core = shared_from_this()](const rpc::PeerInfo& peer, uint64_t epoch) {
    core->OnSessionEnded(peer, epoch);
  });
  agent_.OnSessionLost([core = shared_from_this()](const rpc::PeerInfo& peer, uint64_t epoch,
                                                   const absl::Status& reason) {
    for (const auto& context : core->table_.All())
      context->LoseSession(peer.name, {peer.incarnation, epoch}, reason);
  });
  agent_.OnDraining([core = shared_from_this()] { core->Drain(); });
}

void DistAutograd::Core::Drain() {
  draining_ = true;
  for (const auto& pass : table_.Passes()) pass->FailIfWaiting(Draining());
}

void DistAutograd::Core::Close() {
  for (const auto& pass : table_.Passes()) {
    pass->Fail(absl::CancelledError(absl::StrCat("error on ", self_.name, ": it is stopping")), "");
  }
  gate_.Close();
}

// ---- contexts

void DistAutograd::Core::Finish(const ContextTable::Erased& erased, const std::string& source) {
  if (erased.pass != nullptr) {
    erased.pass->Fail(absl::AbortedError(absl::StrCat(
                          "error on ", self_.name, ": autograd context ",
                          erased.state->id().ToString(), " was released during its backward")),
                      source);
  }
  if (FaultOn("release_not_passed_on")) return;
  for (const std::string& peer : erased.state->KnownWorkers()) {
    if (peer == source || peer == self_.name) continue;
    rpc::Request request;
    request.method = "autograd.release";
    request.payload.header = EncodeRelease({erased.state->id()});
    Send(peer, std::move(request), kReleaseTimeout);
  }
}

void DistAutograd::Core::Release(GlobalId context, const std::string& source) {
  ContextTable::Erased erased = table_.Erase(context);
  if (erased.state == nullptr) return;
  Finish(erased, source);
  // Freeing thousands of tensors would delay the requests behind this release.
  if (erased.state->IsLarge())
    // If refused, it is freed here.
    executor_.Submit([state = std::move(erased.state)] {}).IgnoreError();
}

void DistAutograd::Core::OnRelease(const CallPtr& call) {
  auto contexts = DecodeRelease(call->payload().header);
  if (!contexts.ok()) return call->Reply(contexts.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("release cancelled"));
  for (GlobalId context : *contexts) Release(context, call->caller().name);
  call->Reply(rpc::Payload{});
}

void DistAutograd::Core::OnSessionEnded(const rpc::PeerInfo& peer, uint64_t epoch) {
  const auto has_later = [&] {
    Gate::Entry entry(gate_);
    if (!entry.open()) return false;
    const std::vector<rpc::PeerStatus> peers = agent_.Peers();
    return std::any_of(peers.begin(), peers.end(), [&](const rpc::PeerStatus& each) {
      return each.peer.incarnation == peer.incarnation && each.epoch_here > epoch;
    });
  };
  for (const auto& erased : table_.EraseOf({peer.incarnation, epoch}, has_later))
    Finish(erased, peer.name);
}

// ---- messages

absl::StatusOr<std::string> DistAutograd::Core::Describe(ContextState& context,
                                                         const std::vector<Variable>& variables) {
  MessageInfo info;
  info.context = context.id();
  bool any = false;
  for (const Variable& variable : variables) any |= variable.requires_grad();
  if (!any) return EncodeMessageInfo(info);
  for (const Variable& variable : variables) {
    info.requires_grad.push_back(variable.requires_grad() ? 1 : 0);
  }
  PSD_ASSIGN_OR_RETURN(auto send, context.AddSend(variables));
  info.message = send->message();
  GraphWalk walk(context, self_.incarnation, GraphWalk::Upstream::kIgnore);
  PSD_RETURN_IF_ERROR(walk.From(send));
  for (const RecvFunction* recv : walk.receives()) info.upstream.push_back(recv->message());
  return EncodeMessageInfo(info);
}

absl::StatusOr<std::vector<Variable>> DistAutograd::Core::Receive(ContextState& context,
                                                                  const rpc::PeerInfo& sender,
                                                                  const MessageInfo& info,
                                                                  std::vector<Tensor> tensors) {
  if (info.message.IsNone()) return Constants(std::move(tensors));
  if (info.message.incarnation != sender.incarnation) {
    return absl::InvalidArgumentError(absl::StrCat("message id ", info.message.ToString(),
                                                   " was not made by its sender ", sender.name));
  }
  if (info.requires_grad.size() != tensors.size()) {
    return absl::InvalidArgumentError(absl::StrCat(tensors.size(), " tensors arrived with ",
                                                   info.requires_grad.size(), " gradient flags"));
  }
  int count = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!info.requires_grad[i]) continue;
    ++count;
    if (IsFloating(tensors[i].dtype())) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor ", i, ", ", tensors[i].ToString(),
                                                   ", cannot require grad: it is not floating"));
  }
  std::vector<GlobalId> upstream;
  bool foreign = false;
  for (GlobalId message : info.upstream) {
    if (message.incarnation != self_.incarnation) {
      foreign = true;
      continue;
    }
    absl::Status known = context.FindSend(message).status();
    if (!known.ok()) return absl::InvalidArgumentError(known.message());
    upstream.push_back(message);
  }
  auto recv = std::make_shared<RecvFunction>(context.id(), info.message, sender.name, count,
                                             std::move(upstream), foreign);
  context.CountRecv(sender.incarnation == self_.incarnation);
  std::vector<Variable> variables;
  variables.reserve(tensors.size());
  int output = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    variables.push_back(info.requires_grad[i]
                            ? Variable::OfNode(std::move(tensors[i]), recv, output++)
                            : Variable(std::move(tensors[i])));
  }
  return variables;
}

// ---- passes

absl::StatusOr<std::shared_ptr<Pass>> DistAutograd::Core::Join(const PassInfo& info) {
  PSD_ASSIGN_OR_RETURN(auto context, table_.Find(info.context));
  std::shared_ptr<Pass> superseded;
  auto pass = table_.JoinPass(
      info.context, info.pass,
      [&] { return std::make_shared<Pass>(shared_from_this(), context, info); }, &superseded);
  if (superseded != nullptr) {
    superseded->Fail(absl::AbortedError("a later pass of the same worker has begun"), "");
  }
  return pass;
}

void DistAutograd::Core::OnGradient(const CallPtr& call) {
  absl::Status status = TakeGradient(call);
  if (!status.ok()) call->Reply(ErrorOn(self_.name, status));
}

// Everything is checked before anything changes.
absl::Status DistAutograd::Core::TakeGradient(const CallPtr& call) {
  const std::string* attachment = call->attachment(DistAutograd::kTag);
  if (attachment == nullptr) return absl::InvalidArgumentError("gradients without their header");
  PSD_ASSIGN_OR_RETURN(GradientInfo info, DecodeGradientInfo(*attachment));
  PSD_ASSIGN_OR_RETURN(auto context, table_.Find(info.pass.context));
  Arrival arrival;
  PSD_ASSIGN_OR_RETURN(arrival.send, context->FindSend(info.message));
  PSD_ASSIGN_OR_RETURN(arrival.gradients, rref::DecodeTensorValues(call->payload()));
  PSD_RETURN_IF_ERROR(arrival.send->CheckGradients(arrival.gradients));
  if (!call->BeginApply()) return absl::CancelledError("cancelled before it was applied");
  PSD_ASSIGN_OR_RETURN(auto pass, Join(info.pass));
  arrival.call = call;
  pass->Receive(std::move(arrival), info.start, info.expected);
  if (draining_) pass->FailIfWaiting(Draining());
  return absl::OkStatus();
}

void DistAutograd::Core::OnMark(const CallPtr& call) {
  auto info = DecodeMarkInfo(call->payload().header);
  if (!info.ok()) return call->Reply(info.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("mark cancelled"));
  auto pass = Join(info->pass);
  if (!pass.ok()) return call->Reply(pass.status());
  std::vector<GlobalId> messages;
  for (uint64_t counter : info->messages) messages.push_back({self_.incarnation, counter});
  (*pass)->Mark(messages, [call](const absl::Status& marked) {
    call->Reply(marked.ok() ? absl::StatusOr<rpc::Payload>(rpc::Payload{}) : marked);
  });
}

void DistAutograd::Core::OnAbort(const CallPtr& call) {
  auto info = DecodeAbortInfo(call->payload().header);
  if (!info.ok()) return call->Reply(info.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("abort cancelled"));
  auto pass = table_.EndPass(info->context, info->pass);
  if (pass != nullptr) pass->Fail(info->status, call->caller().name);
  call->Reply(rpc::Payload{});
}

Future<Unit> DistAutograd::Core::Start(const std::shared_ptr<ContextState>& context,
                                       absl::StatusOr<std::vector<Root>> roots,
                                       const BackwardOptions& options) {
  absl::Status usable = context->usable();
  usable.Update(roots.status());
  if (!usable.ok()) return Future<Unit>::Ready(usable);
  if (options.timeout <= absl::ZeroDuration()) {
    return Future<Unit>::Ready(
        absl::InvalidArgumentError("the timeout of a backward must be positive"));
  }
  PassInfo info;
  info.context = context->id();
  info.mode = options.mode;
  info.retain_graph = options.retain_graph;
  info.timeout = options.timeout;
  auto pass = table_.StartPass(context, [&](GlobalId id) {
    info.pass = id;
    return std::make_shared<Pass>(shared_from_this(), context, info);
  });
  if (!pass.ok()) return Future<Unit>::Ready(pass.status());
  return (*pass)->Run(*std::move(roots));
}

// ---- the public class

std::unique_ptr<DistAutograd> DistAutograd::Create(rpc::RpcAgent& agent, IdSource& ids,
                                                   TimerQueue& timers, Executor& executor,
                                                   std::shared_ptr<MemoryBudget> memory) {
  auto core = std::make_shared<Core>(agent, ids, timers, executor, std::move(memory));
  core->Register();
  return std::unique_ptr<DistAutograd>(new DistAutograd(std::move(core)));
}

DistAutograd::DistAutograd(std::shared_ptr<Core> core) : core_(std::move(core)) {}

DistAutograd::~DistAutograd() {
  core_->Close();
}

std::shared_ptr<ContextState> DistAutograd::NewContext() {
  return core_->table().Create();
}
absl::StatusOr<std::shared_ptr<ContextState>> DistAutograd::Find(GlobalId context) const {
  return core_->table().Find(context);
}

void DistAutograd::Release(GlobalId context) {
  core_->Release(context, "");
}

absl::StatusOr<rpc::Attachment> DistAutograd::WrapRequest(
    const std::shared_ptr<ContextState>& context, const std::string& callee,
    const std::vector<Variable>& variables) {
  // The callee is added before the context is looked up. So either a release finds the callee, or
  // the lookup finds the context released.
  context->AddCallee(callee);
  PSD_RETURN_IF_ERROR(core_->table().Find(context->id()));
  PSD_RETURN_IF_ERROR(context->usable());
  PSD_ASSIGN_OR_RETURN(std::string bytes, core_->Describe(*context, variables));
  return rpc::Attachment{kTag, std::move(bytes)};
}

absl::StatusOr<DistAutograd::Received> DistAutograd::UnwrapRequest(const rpc::ServerCall& call,
                                                                   std::vector<Tensor> tensors) {
  const std::string* bytes = call.attachment(kTag);
  if (bytes == nullptr) return Received{nullptr, Constants(std::move(tensors))};
  PSD_ASSIGN_OR_RETURN(MessageInfo info, DecodeMessageInfo(*bytes));
  Received received;
  PSD_ASSIGN_OR_RETURN(
      received.context,
      core_->table().FindOrJoin(info.context, {call.caller().incarnation, call.session_epoch()}));
  received.context->AddKnownWorker(call.caller().name);
  PSD_ASSIGN_OR_RETURN(received.variables,
                       core_->Receive(*received.context, call.caller(), info, std::move(tensors)));
  return received;
}

absl::StatusOr<std::vector<rpc::Attachment>> DistAutograd::WrapReply(
    const std::shared_ptr<ContextState>& context, const std::vector<Variable>& variables) {
  std::vector<rpc::Attachment> attachments;
  bool any = false;
  for (const Variable& variable : variables) any |= variable.requires_grad();
  if (context == nullptr || !any || FaultOn("results_come_back_as_constants")) return attachments;
  auto bytes = core_->Describe(*context, variables);
  if (absl::IsResourceExhausted(bytes.status())) return bytes.status();
  // After other errors the receiver gets the tensors as constants.
  if (bytes.ok()) attachments.push_back({kTag, *std::move(bytes)});
  return attachments;
}

absl::StatusOr<std::vector<rpc::Attachment>> DistAutograd::WrapLeaves(
    const std::shared_ptr<ContextState>& context, std::vector<LeafInfo> leaves) {
  MessageInfo info;
  info.context = context->id();
  info.requires_grad.reserve(leaves.size());
  for (const LeafInfo& leaf : leaves) info.requires_grad.push_back(leaf.key.IsNone() ? 0 : 1);
  leaves.erase(std::remove_if(leaves.begin(), leaves.end(),
                              [](const LeafInfo& leaf) { return leaf.key.IsNone(); }),
               leaves.end());
  std::vector<rpc::Attachment> attachments;
  if (leaves.empty()) return attachments;
  PSD_ASSIGN_OR_RETURN(auto send, context->AddSend(std::move(leaves)));
  info.message = send->message();
  attachments.push_back({kTag, EncodeMessageInfo(info)});
  return attachments;
}

absl::StatusOr<std::vector<Variable>> DistAutograd::UnwrapReply(
    const std::shared_ptr<ContextState>& context, const rpc::Reply& reply,
    std::vector<Tensor> tensors) {
  if (context != nullptr)
    context->Answered(reply.callee.name, {reply.callee.incarnation, reply.epoch});
  const std::string* bytes = AttachmentOf(reply);
  if (context == nullptr || bytes == nullptr) return Constants(std::move(tensors));
  PSD_ASSIGN_OR_RETURN(MessageInfo info, DecodeMessageInfo(*bytes));
  if (info.context != context->id()) {
    return absl::InvalidArgumentError(absl::StrCat("a reply in autograd context ",
                                                   info.context.ToString(), ", not in ",
                                                   context->id().ToString()));
  }
  return core_->Receive(*context, reply.callee, info, std::move(tensors));
}

Future<Unit> DistAutograd::Backward(const std::shared_ptr<ContextState>& context,
                                    const std::vector<Variable>& roots,
                                    const BackwardOptions& options) {
  return core_->Start(context, LossRoots(roots), options);
}

Future<Unit> DistAutograd::BackwardFrom(const std::shared_ptr<ContextState>& context,
                                        const std::vector<Variable>& outputs,
                                        const std::vector<Tensor>& gradients,
                                        const BackwardOptions& options) {
  return core_->Start(context, GivenRoots(outputs, gradients), options);
}

DistAutograd::Stats DistAutograd::stats() const {
  return {core_->table().NumContexts(), core_->table().NumPasses()};
}

std::vector<std::shared_ptr<ContextState>> DistAutograd::Contexts() const {
  return core_->table().All();
}

}  // namespace psd::dist_autograd
