// The state of a worker's backward passes, and the methods that other workers call.
#include "core/dist_autograd/dist_autograd_core.h"

#include <algorithm>

#include "core/base/faults.h"
#include "core/base/status.h"
#include "core/dist_autograd/autograd_codec.h"
#include "core/dist_autograd/graph_walk.h"

namespace psd::dist_autograd {
namespace {

constexpr absl::Duration kReleaseTimeout = absl::Seconds(60);

}  // namespace

std::vector<Variable> DistAutograd::Core::Constants(std::vector<Tensor> tensors) {
  std::vector<Variable> variables;
  variables.reserve(tensors.size());
  for (Tensor& tensor : tensors) variables.emplace_back(std::move(tensor));
  return variables;
}

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
  messages_.Close();
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
    rref::Gate::Entry entry(gate_);
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
  info.takes_pieces = TakesPieces(*send);
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
                                             std::move(upstream), foreign, info.takes_pieces);
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
  if (GradientMessages::LeavesOut(*call)) {
    const absl::Status begun = FetchGradient(call);
    if (!begun.ok()) call->Reply(ErrorOn(self_.name, begun));
    return;
  }
  if (!GradientMessages::Lends(*call)) return AnswerGradient(call);
  // The executor runs this, because opening lent memory may take long.
  const absl::Status queued =
      RunOnExecutor(*call, [core = shared_from_this(), call] { core->AnswerGradient(call); });
  if (queued.ok()) return;
  // A full executor is no reason to fail the pass: nobody waits for copies here.
  if (absl::IsResourceExhausted(queued)) return Refuse(call, queued);
  call->Reply(ErrorOn(self_.name, queued));
}

absl::Status DistAutograd::Core::FetchGradient(const CallPtr& call) {
  PSD_ASSIGN_OR_RETURN(const Target target, TargetOf(*call));
  return messages_.Fetch(call, target.send->device(), target.send->gradient_bytes(),
                         [core = shared_from_this(), call](const absl::Status& fetched) {
                           if (!fetched.ok()) return Refuse(call, fetched);
                           core->AnswerGradient(call);
                         });
}

void DistAutograd::Core::Refuse(const CallPtr& call, const absl::Status& why) {
  call->Reply(rpc::Payload{EncodeGradientAnswer({{}, why}), {}});
}

void DistAutograd::Core::AnswerGradient(const CallPtr& call) {
  absl::Status status = TakeGradient(call);
  if (!status.ok()) call->Reply(ErrorOn(self_.name, status));
}

absl::StatusOr<DistAutograd::Core::Target> DistAutograd::Core::TargetOf(
    const rpc::ServerCall& call) const {
  const std::string* attachment = call.attachment(DistAutograd::kTag);
  if (attachment == nullptr) return absl::InvalidArgumentError("gradients without their header");
  Target target;
  PSD_ASSIGN_OR_RETURN(target.info, DecodeGradientInfo(*attachment));
  PSD_ASSIGN_OR_RETURN(const auto context, table_.Find(target.info.pass.context));
  PSD_ASSIGN_OR_RETURN(target.send, context->FindSend(target.info.message));
  return target;
}

// Everything is checked before anything changes.
absl::Status DistAutograd::Core::TakeGradient(const CallPtr& call) {
  PSD_ASSIGN_OR_RETURN(Target target, TargetOf(*call));
  PSD_ASSIGN_OR_RETURN(ArrivedGradients arrived, messages_.Decode(*call));
  if (!arrived.refused.ok()) {
    Refuse(call, arrived.refused);
    return absl::OkStatus();
  }
  PSD_RETURN_IF_ERROR(target.send->CheckGradients(arrived.gradients));
  if (!call->BeginApply()) return absl::CancelledError("cancelled before it was applied");
  PSD_ASSIGN_OR_RETURN(auto pass, Join(target.info.pass));
  Arrival arrival{std::move(target.send), std::move(arrived.gradients), call};
  pass->Receive(std::move(arrival), target.info.start, target.info.expected);
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

}  // namespace psd::dist_autograd
