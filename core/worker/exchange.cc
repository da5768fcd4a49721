#include "core/worker/exchange.h"

#include "core/rref/value_codec.h"
#include "core/worker/runtime.h"

namespace psd::worker {
namespace {

using store::RemoteReference;
using store::Value;

// How references travel in the arguments of a call: to their own owner they go by id, because the
// caller keeps its fork until the answer has come.
absl::StatusOr<rref::ForkData> ArgumentFork(Runtime& runtime, const std::string& callee,
                                            const RemoteReference& reference) {
  const auto* body = dynamic_cast<const rref::RRef::Body*>(&reference);
  if (body == nullptr) return absl::InternalError("a reference that no RRef layer made");
  if (reference.owner() != callee) {
    return absl::FailedPreconditionError(
        absl::StrCat("an RRef to ", reference.value_id().ToString(), " of ", reference.owner(),
                     " cannot be passed to ", callee,
                     ": RRefs travel to their owners and from them; pass the "
                     "value (ToHere) or call ",
                     reference.owner(), " instead"));
  }
  rref::ForkData data;
  data.owner = reference.owner();
  data.owner_incarnation = body->owner_incarnation();
  data.value = reference.value_id();
  data.fork = body->fork_id();
  data.parent = runtime.name();
  data.name = body->name();
  return data;
}

// How references travel in an answer: the callee's own values gain a fork for the caller.
absl::StatusOr<rref::ForkData> AnswerFork(Runtime& runtime, rpc::ServerCall& call,
                                          const RemoteReference& reference) {
  const auto* body = dynamic_cast<const rref::RRef::Body*>(&reference);
  if (body == nullptr || body->local_entry() == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("an RRef to ", reference.value_id().ToString(), " of ", reference.owner(),
                     " cannot be returned by ", runtime.name(), ", which does not own it"));
  }
  return ForkForCaller(runtime, call, body->local_entry());
}

// A reference that arrived: to a value of this worker, or to one of its sender's.
absl::StatusOr<Value> Adopt(Runtime& runtime, const rref::ForkData& data) {
  PSD_ASSIGN_OR_RETURN(rref::RRef rref, runtime.rrefs().AdoptFork(data));
  return Value(std::shared_ptr<const RemoteReference>(rref.body()));
}

}  // namespace

rref::ForkData ForkForCaller(Runtime& runtime, rpc::ServerCall& call,
                             const store::EntryPtr& entry) {
  rref::ForkData data = runtime.rrefs().ForkFor(entry, call.caller(), call.session_epoch());
  call.OnAnswerDropped([&runtime, data, caller = call.caller(), epoch = call.session_epoch()] {
    runtime.rrefs().DropFork(data, caller, epoch);
  });
  return data;
}

absl::StatusOr<rpc::Request> EncodeRequest(Runtime& runtime, std::string method,
                                           const std::string& callee, const Values& values,
                                           const ContextPtr& context) {
  rpc::Request request;
  request.method = std::move(method);
  request.session_bound = context != nullptr;
  PSD_ASSIGN_OR_RETURN(request.payload,
                       rref::EncodeValues(values, [&](const RemoteReference& reference) {
                         request.session_bound = true;
                         return ArgumentFork(runtime, callee, reference);
                       }));
  if (context == nullptr) return request;
  PSD_ASSIGN_OR_RETURN(
      rpc::Attachment attachment,
      runtime.autograd().WrapRequest(context, callee, rref::CollectVariables(values)));
  request.attachments.push_back(std::move(attachment));
  return request;
}

absl::StatusOr<Values> DecodeReply(Runtime& runtime, const ContextPtr& context,
                                   const rpc::Reply& reply) {
  return rref::DecodeValues(
      reply.payload,
      [&](std::vector<Tensor> tensors) {
        return runtime.autograd().UnwrapReply(context, reply, std::move(tensors));
      },
      [&](const rref::ForkData& data) { return Adopt(runtime, data); });
}

absl::StatusOr<Arguments> DecodeRequest(Runtime& runtime, rpc::ServerCall& call) {
  Arguments arguments;
  PSD_ASSIGN_OR_RETURN(
      arguments.values,
      rref::DecodeValues(
          call.payload(),
          [&](std::vector<Tensor> tensors) -> absl::StatusOr<std::vector<Variable>> {
            PSD_ASSIGN_OR_RETURN(auto received,
                                 runtime.autograd().UnwrapRequest(call, std::move(tensors)));
            arguments.context = std::move(received.context);
            return std::move(received.variables);
          },
          [&](const rref::ForkData& data) { return Adopt(runtime, data); }));
  return arguments;
}

void ReplyWithValues(Runtime& runtime, rpc::ServerCall& call, const ContextPtr& context,
                     const absl::StatusOr<Values>& result) {
  if (!result.ok()) return call.Reply(result.status());
  auto payload = rref::EncodeValues(*result, [&](const RemoteReference& reference) {
    return AnswerFork(runtime, call, reference);
  });
  std::vector<rpc::Attachment> attachments;
  if (payload.ok() && context != nullptr) {
    attachments = runtime.autograd().WrapReply(context, rref::CollectVariables(*result));
  }
  call.Reply(std::move(payload), std::move(attachments));
}

}  // namespace psd::worker
