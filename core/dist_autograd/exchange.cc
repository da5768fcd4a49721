#include "core/dist_autograd/exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/autograd/variable.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/rpc/message_io.h"
#include "core/rref/value_codec.h"
#include "core/store/on_device.h"
#include "core/tensor/tensor.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::dist_autograd {
namespace {

// The most references to other workers' values in one message. Each costs a message to its owner.
constexpr size_t kMaxBorrowed = 4096;

using store::RemoteReference;
using store::Value;
using store::Values;

}  // namespace

absl::StatusOr<rref::ForkData> Exchange::ForkForCaller(rpc::ServerCall& call,
                                                       const store::EntryPtr& entry) const {
  PSD_ASSIGN_OR_RETURN(const rref::ForkData data,
                       rrefs_.ForkFor(entry, call.caller(), call.session_epoch()));
  call.OnAnswerDropped([&rrefs = rrefs_, data, caller = call.caller(),
                        epoch = call.session_epoch()] { rrefs.DropFork(data, caller, epoch); });
  return data;
}

// Describes a reference among the arguments of a call. It travels by id only, because the caller
// keeps its own fork until the answer has come. The name is left out for the owner, which knows it.
// A fork that this worker holds of its own value is not described (CreatedBody).
absl::Status Exchange::DescribeArgument(const std::string& callee, const RemoteReference& reference,
                                        rref::ForkData& data) const {
  const auto& body = rref::RRef::Body::Of(reference);
  data.owner = body.owner();
  data.owner_incarnation = body.owner_incarnation();
  data.value = body.value_id();
  if (!body.is_owner()) data.fork = body.fork_id();
  data.parent = self_.name;
  data.name = data.owner == callee ? std::string() : body.name();
  return absl::OkStatus();
}

// Describes a reference in an answer. For a value of this worker a fork is counted for the caller;
// a reference to another worker's value is lent.
absl::StatusOr<rref::ForkData> Exchange::AnswerFork(rpc::ServerCall& call,
                                                    const RemoteReference& reference) const {
  const rref::RRef rref(
      std::static_pointer_cast<const rref::RRef::Body>(reference.shared_from_this()));
  if (rref.is_owner()) {
    PSD_ASSIGN_OR_RETURN(const store::EntryPtr entry, rref.local_entry());
    return ForkForCaller(call, entry);
  }
  PSD_ASSIGN_OR_RETURN(rref::ForkData data, rrefs_.Lend(rref, call.caller(), call.session_epoch()));
  call.OnAnswerDropped([&rrefs = rrefs_, data, caller = call.caller(),
                        epoch = call.session_epoch()] { rrefs.TakeBack(data, caller, epoch); });
  return data;
}

ContextPtr RecordingContext(const ContextPtr& context) {
  return GradEnabled() ? context : nullptr;
}

absl::StatusOr<rpc::Request> Exchange::EncodeRequest(std::string method, const std::string& callee,
                                                     const Values& values,
                                                     const ContextPtr& context) const {
  rpc::Request request;
  request.method = std::move(method);
  PSD_ASSIGN_OR_RETURN(request.payload,
                       rref::EncodeValues(values, [&](const auto& reference, auto& data) {
                         request.session_bound = true;
                         return DescribeArgument(callee, reference, data);
                       }));
  if (context == nullptr) return request;
  PSD_RETURN_IF_ERROR(
      autograd_.WrapRequest(context, callee, rref::CollectVariables(values), request));
  return request;
}

absl::StatusOr<Values> Exchange::DecodeReply(const ContextPtr& context, const rpc::Reply& reply,
                                             Device* device) const {
  return rref::DecodeValues(
      reply.payload,
      [&](std::vector<Tensor> tensors) -> absl::StatusOr<std::vector<Variable>> {
        if (device != nullptr) {
          for (Tensor& tensor : tensors) {
            PSD_ASSIGN_OR_RETURN(tensor, store::OnDevice(tensor, device));
          }
        }
        return autograd_.UnwrapReply(context, reply, std::move(tensors));
      },
      [&](const rref::ForkRun& run) -> absl::StatusOr<Values> {
        Values adopted;
        for (const rref::ForkRun::Fork& fork : run.forks) {
          PSD_ASSIGN_OR_RETURN(rref::RRef rref, rrefs_.AdoptFork(run.DataOf(fork), reply.epoch));
          adopted.emplace_back(rref);
        }
        return adopted;
      });
}

absl::StatusOr<Values> Exchange::BorrowAll(const rref::ForkRun& run, ReferenceUse use,
                                           std::vector<Future<Unit>>& borrowed) const {
  if (run.owner != self_.name && borrowed.size() + run.forks.size() > kMaxBorrowed) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat("a call with more than ", kMaxBorrowed,
                                                " references to values of other workers")),
        "pass fewer at once");
  }
  rref::RRefContext& context = rrefs_;
  PSD_ASSIGN_OR_RETURN(const std::vector<rref::RRef> rrefs, use == ReferenceUse::kRead
                                                                ? context.BorrowUncounted(run)
                                                                : context.Borrow(run));
  Values references;
  references.reserve(rrefs.size());
  for (const rref::RRef& rref : rrefs) {
    if (!rref.is_owner()) borrowed.push_back(rref.body()->confirmed());
    references.emplace_back(rref);
  }
  return references;
}

absl::StatusOr<Arguments> Exchange::DecodeRequest(rpc::ServerCall& call, ReferenceUse use) const {
  Arguments arguments;
  PSD_ASSIGN_OR_RETURN(
      arguments.values,
      rref::DecodeValues(
          call.payload(),
          [&](std::vector<Tensor> tensors) -> absl::StatusOr<std::vector<Variable>> {
            PSD_ASSIGN_OR_RETURN(auto received, autograd_.UnwrapRequest(call, std::move(tensors)));
            arguments.context = std::move(received.context);
            return std::move(received.variables);
          },
          [&](const rref::ForkRun& run) { return BorrowAll(run, use, arguments.borrowed); }));
  return arguments;
}

absl::StatusOr<rpc::Contents> Exchange::EncodeReply(rpc::ServerCall& call,
                                                    const ContextPtr& context,
                                                    const Values& values) const {
  rpc::Contents reply;
  PSD_ASSIGN_OR_RETURN(reply.payload,
                       rref::EncodeValues(values, [&](const auto& reference, auto& data) {
                         auto fork = AnswerFork(call, reference);
                         if (fork.ok()) data = *std::move(fork);
                         return fork.status();
                       }));
  if (context == nullptr) return reply;
  PSD_ASSIGN_OR_RETURN(reply.attachments,
                       autograd_.WrapReply(context, rref::CollectVariables(values)));
  return reply;
}

absl::StatusOr<rpc::Contents> Exchange::ReferenceReply(rpc::ServerCall& call,
                                                       const store::EntryPtr& entry) const {
  PSD_ASSIGN_OR_RETURN(const rref::ForkData data, ForkForCaller(call, entry));
  v1::ReferenceReply reply;
  reply.set_value_incarnation(data.value.incarnation);
  reply.set_value_counter(data.value.counter);
  reply.set_fork_incarnation(data.fork.incarnation);
  reply.set_fork_counter(data.fork.counter);
  reply.set_name(data.name);
  return rpc::Contents{rpc::PlainPayload(reply), {}};
}

absl::StatusOr<rref::RRef> Exchange::AdoptReference(const std::string& owner,
                                                    const rpc::Reply& reply) const {
  PSD_ASSIGN_OR_RETURN(auto message,
                       rpc::ParseMessage<v1::ReferenceReply>(reply.payload.header, "a reference"));
  rref::ForkData data;
  data.owner = owner;
  data.owner_incarnation = reply.callee.incarnation;
  data.value = {message.value_incarnation(), message.value_counter()};
  data.fork = {message.fork_incarnation(), message.fork_counter()};
  data.parent = owner;
  data.name = message.name();
  return rrefs_.AdoptFork(data, reply.epoch);
}

}  // namespace psd::dist_autograd
