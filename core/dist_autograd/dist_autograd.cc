#include "core/dist_autograd/dist_autograd.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/status.h"
#include "core/dist_autograd/autograd_codec.h"
#include "core/dist_autograd/dist_autograd_core.h"

namespace psd::dist_autograd {
namespace {

const std::string* AttachmentOf(const rpc::Reply& reply) {
  for (const rpc::Attachment& attachment : reply.attachments) {
    if (attachment.tag == DistAutograd::kTag) return &attachment.bytes;
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<DistAutograd> DistAutograd::Create(rpc::RpcAgent& agent, IdSource& ids,
                                                   TimerQueue& timers, Executor& executor,
                                                   std::shared_ptr<MemoryBudget> memory,
                                                   GradientMessages::Uses messages) {
  auto core =
      std::make_shared<Core>(agent, ids, timers, executor, std::move(memory), std::move(messages));
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

absl::Status DistAutograd::WrapRequest(const std::shared_ptr<ContextState>& context,
                                       const std::string& callee,
                                       const std::vector<Variable>& variables,
                                       rpc::Request& request) {
  // The callee is added before the context is looked up. So either a release finds the callee, or
  // the lookup finds the context released.
  // Then the session is looked up. So if it ends, the notice of that finds the callee.
  if (context->AddCallee(callee)) context->SetSession(callee, core_->SessionOn(callee));
  const rref::SessionKey session = context->SessionOn(callee);
  PSD_RETURN_IF_ERROR(core_->table().Find(context->id()));
  PSD_RETURN_IF_ERROR(context->usable());
  PSD_ASSIGN_OR_RETURN(std::string bytes, core_->Describe(*context, variables));
  request.attachments.push_back({kTag, std::move(bytes)});
  request.session_bound = true;
  if (session.epoch != 0) {
    request.only_incarnation = session.peer;
    request.only_epoch = session.epoch;
  }
  return absl::OkStatus();
}

absl::StatusOr<DistAutograd::Received> DistAutograd::UnwrapRequest(const rpc::ServerCall& call,
                                                                   std::vector<Tensor> tensors) {
  const std::string* bytes = call.attachment(kTag);
  if (bytes == nullptr) return Received{nullptr, Core::Constants(std::move(tensors))};
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
    const std::shared_ptr<ContextState>& context, std::vector<LeafInfo> leaves, Device* device) {
  MessageInfo info;
  info.context = context->id();
  info.requires_grad.reserve(leaves.size());
  for (const LeafInfo& leaf : leaves) info.requires_grad.push_back(leaf.key.IsNone() ? 0 : 1);
  leaves.erase(std::remove_if(leaves.begin(), leaves.end(),
                              [](const LeafInfo& leaf) { return leaf.key.IsNone(); }),
               leaves.end());
  std::vector<rpc::Attachment> attachments;
  if (leaves.empty()) return attachments;
  PSD_ASSIGN_OR_RETURN(auto send, context->AddSend(std::move(leaves), device));
  info.message = send->message();
  info.takes_pieces = core_->TakesPieces(*send);
  attachments.push_back({kTag, EncodeMessageInfo(info)});
  return attachments;
}

absl::StatusOr<std::vector<Variable>> DistAutograd::UnwrapReply(
    const std::shared_ptr<ContextState>& context, const rpc::Reply& reply,
    std::vector<Tensor> tensors) {
  if (context != nullptr)
    context->SetSession(reply.callee.name, {reply.callee.incarnation, reply.epoch});
  const std::string* bytes = AttachmentOf(reply);
  if (context == nullptr || bytes == nullptr) return Core::Constants(std::move(tensors));
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
