#pragma once

// Declares a method once: its name, its types, whether it changes something, and where it runs.
// Serve() registers the function that answers the method, and Ask() calls the method.
//
//   inline constexpr rpc::Declared<v1::NameRequest, Unit> kDrop{
//       {"value.drop", rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread}};
//   rpc::Serve(agent, kDrop, this, &ValueService::DropNamed);    // on the callee
//   rpc::Ask(agent, kDrop, {owner}, request, options);           // on the caller
//
// Serve parses the request, and answers the call with the function's result. A request that cannot
// be parsed is answered with INVALID_ARGUMENT naming the method, and the function does not run.
// Everything here but Serve is thread-safe.

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/memory_place.h"
#include "core/base/status.h"
#include "core/rpc/message_io.h"
#include "core/rpc/parse_cost.h"
#include "core/rpc/rpc_agent.h"

namespace psd::rpc {

using CallPtr = std::shared_ptr<ServerCall>;  // shared by the agent and the function

struct MethodInfo {
  const char* name;  // "value.fetch": layer, dot, verb
  MethodKind kind;
  RunsOn runs_on;
};

// RequestType and ReplyType say where a message travels:
//   a protobuf message   in the header
//   Unit                 nowhere: there is none
//   Beside<Message>      in an attachment, because the payload holds values
//   Bulk<Message>        in the only buffer of the payload, because it may be large
//   Contents             replies only: the function encodes the payload, and the caller decodes it
template <typename RequestType, typename ReplyType>
struct Declared {
  MethodInfo info;
};

template <typename Message>
struct Beside {
  Message message;
};

template <typename Message>
struct Bulk {
  Message message;
};

struct Contents {
  Payload payload;
  std::vector<Attachment> attachments;
};

// Parses and writes one of the types listed above. Errors: INVALID_ARGUMENT naming the method.
template <typename Message>
struct Wire {  // a protobuf message
  static absl::StatusOr<Message> Parse(ServerCall& call) {
    return ParseMessage<Message>(call.payload().header, call.method());
  }
  static absl::StatusOr<Message> ParseReply(const Reply& reply, const char* method) {
    return ParseMessage<Message>(reply.payload.header, method);
  }
  static Contents Write(const Message& message) { return {PlainPayload(message), {}}; }
};

template <>
struct Wire<Unit> {
  static absl::StatusOr<Unit> Parse(ServerCall&) { return Unit{}; }
  static absl::StatusOr<Unit> ParseReply(const Reply&, const char*) { return Unit{}; }
  static Contents Write(Unit) { return {}; }
};

template <typename Message>
struct Wire<Beside<Message>> {
  static absl::StatusOr<Beside<Message>> Parse(ServerCall& call) {
    PSD_ASSIGN_OR_RETURN(Message message, ParseFields<Message>(call));
    return Beside<Message>{std::move(message)};
  }
  static absl::StatusOr<Beside<Message>> ParseReply(const Reply& reply, const char* method) {
    PSD_ASSIGN_OR_RETURN(Message message, ParseFields<Message>(reply, method));
    return Beside<Message>{std::move(message)};
  }
  static Contents Write(const Beside<Message>& fields) {
    return {{}, {FieldsAttachment(fields.message)}};
  }
};

template <typename Message>
struct Wire<Bulk<Message>> {
  static absl::StatusOr<Bulk<Message>> Parse(ServerCall& call) {
    PSD_ASSIGN_OR_RETURN(const Buffer only, OnlyBuffer(call.payload().buffers, call.method()));
    // The copy that StableBytes makes. Other bytes were charged when they arrived.
    if (only.place().kind() == MemoryPlace::Kind::kForeign)
      PSD_RETURN_IF_ERROR(call.Charge(only.size()));
    PSD_ASSIGN_OR_RETURN(const Buffer bytes, StableBytes(only));
    PSD_RETURN_IF_ERROR(call.Charge(ParseCost(*Message::descriptor(), bytes.view())));
    return ParseBytes(bytes, call.method());
  }
  static absl::StatusOr<Bulk<Message>> ParseReply(const Reply& reply, const char* method) {
    PSD_ASSIGN_OR_RETURN(const Buffer only, OnlyBuffer(reply.payload.buffers, method));
    PSD_ASSIGN_OR_RETURN(const Buffer bytes, StableBytes(only));
    return ParseBytes(bytes, method);
  }
  static Contents Write(const Bulk<Message>& bulk) {
    return {{"", {Buffer::FromString(bulk.message.SerializeAsString())}}, {}};
  }

 private:
  static absl::StatusOr<Buffer> OnlyBuffer(const std::vector<Buffer>& buffers,
                                           absl::string_view method) {
    if (buffers.size() != 1)
      return absl::InvalidArgumentError(absl::StrCat(method, ": one buffer is expected"));
    PSD_RETURN_IF_ERROR(CheckParsable(buffers[0].size(), method));
    return buffers[0];
  }
  static absl::StatusOr<Bulk<Message>> ParseBytes(const Buffer& bytes, absl::string_view method) {
    PSD_ASSIGN_OR_RETURN(Message message, ParseMessage<Message>(bytes.view(), method));
    return Bulk<Message>{std::move(message)};
  }
};

template <>
struct Wire<Contents> {
  static Contents Write(Contents&& contents) { return std::move(contents); }
};

// ---- Callee

// Answers a call on any thread. Copies answer the same call; only the first answer counts.
template <typename ReplyType>
class Answer {
 public:
  explicit Answer(CallPtr call) : call_(std::move(call)) {}

  void operator()(absl::StatusOr<ReplyType> reply) const {
    if (!reply.ok()) return call_->Reply(std::move(reply).status());
    Contents contents = Wire<ReplyType>::Write(*std::move(reply));
    call_->Reply(std::move(contents.payload), std::move(contents.attachments));
  }
  const CallPtr& call() const { return call_; }

 private:
  CallPtr call_;
};

// A mutation calls this immediately before it takes effect. If it fails, the mutation must not
// apply anything. Errors: CANCELLED.
inline absl::Status BeginApply(ServerCall& call) {
  if (call.BeginApply()) return absl::OkStatus();
  return absl::CancelledError(
      absl::StrCat("cancelled before ", call.method(), " changed anything"));
}

namespace internal {

// Answers with the result of a function. If a function that returns a Status returns OK, the
// function itself answers, now or later.
template <typename ReplyType>
void AnswerWith(const Answer<ReplyType>& answer, absl::StatusOr<ReplyType> reply) {
  answer(std::move(reply));
}
template <typename ReplyType>
void AnswerWith(const Answer<ReplyType>& answer, absl::Status begun) {
  if (!begun.ok()) answer(std::move(begun));
}

template <typename RequestType, typename ReplyType, typename Run>
void Register(RpcAgent& agent, const Declared<RequestType, ReplyType>& method, Run run) {
  agent.RegisterMethod({method.info.name, method.info.kind, method.info.runs_on,
                        [run = std::move(run)](CallPtr call) {
                          absl::StatusOr<RequestType> request = Wire<RequestType>::Parse(*call);
                          if (!request.ok()) return call->Reply(std::move(request).status());
                          run(Answer<ReplyType>(std::move(call)), *std::move(request));
                        }});
}

}  // namespace internal

// Registers a function that returns the reply. `service` must outlive the agent's calls.
// Requires: the agent has not started.
template <typename Service, typename RequestType, typename ReplyType>
void Serve(RpcAgent& agent, const Declared<RequestType, ReplyType>& method, Service* service,
           absl::StatusOr<ReplyType> (Service::*function)(const CallPtr&, RequestType)) {
  internal::Register(agent, method, [=](const Answer<ReplyType>& answer, RequestType&& request) {
    internal::AnswerWith(answer, (service->*function)(answer.call(), std::move(request)));
  });
}

// As above, for a method whose reply is Unit.
template <typename Service, typename RequestType>
void Serve(RpcAgent& agent, const Declared<RequestType, Unit>& method, Service* service,
           absl::Status (Service::*function)(const CallPtr&, RequestType)) {
  internal::Register(agent, method, [=](const Answer<Unit>& answer, RequestType&& request) {
    absl::Status done = (service->*function)(answer.call(), std::move(request));
    answer(done.ok() ? absl::StatusOr<Unit>(Unit{}) : std::move(done));
  });
}

// As above, for a function that may answer later. If the function returns an error, that is the
// answer; if it returns OK, it has used `answer` or will use it.
template <typename Service, typename RequestType, typename ReplyType>
void Serve(RpcAgent& agent, const Declared<RequestType, ReplyType>& method, Service* service,
           absl::Status (Service::*function)(const Answer<ReplyType>& answer, RequestType)) {
  internal::Register(agent, method, [=](const Answer<ReplyType>& answer, RequestType&& request) {
    internal::AnswerWith(answer, (service->*function)(answer, std::move(request)));
  });
}

// Calls run() on this thread if it is `light`, otherwise on the executor as the worker's own work
// for the caller. `run` returns the reply, or a Status like a function that may answer later. If
// the executor refuses the work, its error is the answer.
template <typename ReplyType, typename Run>
void RunBySize(Executor& executor, bool light, const Answer<ReplyType>& answer, Run run) {
  static_assert(
      !std::is_same_v<ReplyType, Unit> || !std::is_same_v<std::invoke_result_t<Run&>, absl::Status>,
      "return StatusOr<Unit>: an OK Status would mean that `run` answers later");
  if (light) return internal::AnswerWith(answer, run());
  absl::Status queued = executor.SubmitAs(
      LabelOf(WorkLabel::Kind::kOwn, *answer.call()),
      [answer, run = std::move(run)]() mutable { internal::AnswerWith(answer, run()); });
  if (!queued.ok()) answer(std::move(queued));
}

// ---- Caller

// The worker that is asked. The other fields are as in Request.
struct Destination {
  const std::string& worker;
  Incarnation only_incarnation = 0;
  bool session_bound = false;
};

namespace internal {

// The error of a call that refers to what two incarnations of a worker have.
inline absl::Status OfTwoLives(const std::string& worker, Incarnation one, Incarnation other) {
  return WithDetail(absl::AbortedError(absl::StrCat(
                        "the call refers to what incarnations ", IncarnationToString(one), " and ",
                        IncarnationToString(other), " of ", worker, " have: it was restarted")),
                    ErrorDetail{worker, "", "look up its names again, in a new context", false});
}

}  // namespace internal

// Sends a request that is encoded already, such as one with values. Returns a future of the reply,
// or of the whole rpc::Reply if the declared type is Contents. Errors: those of
// RpcAgent::StartCall; INVALID_ARGUMENT for a reply that cannot be parsed; ABORTED if the request
// and `to` are for different incarnations.
template <typename RequestType, typename ReplyType>
auto Ask(RpcAgent& agent, const Declared<RequestType, ReplyType>& method, const Destination& to,
         Request request, const CallOptions& options) {
  request.method = method.info.name;
  request.kind = method.info.kind;
  const Incarnation bound = request.only_incarnation;
  if (to.only_incarnation != 0) request.only_incarnation = to.only_incarnation;
  if (to.session_bound) request.session_bound = true;
  Future<Reply> reply =
      bound != 0 && bound != request.only_incarnation
          ? Future<Reply>::Ready(internal::OfTwoLives(to.worker, bound, request.only_incarnation))
          : agent.StartCall(to.worker, std::move(request), options).reply();
  if constexpr (std::is_same_v<ReplyType, Contents>) {
    return reply;
  } else {
    return reply.Then([name = method.info.name](
                          const absl::StatusOr<Reply>& answered) -> absl::StatusOr<ReplyType> {
      if (!answered.ok()) return answered.status();
      return Wire<ReplyType>::ParseReply(*answered, name);
    });
  }
}

template <typename RequestType, typename ReplyType>
auto Ask(RpcAgent& agent, const Declared<RequestType, ReplyType>& method, const Destination& to,
         const RequestType& request, const CallOptions& options) {
  Contents contents = Wire<RequestType>::Write(request);
  Request encoded;
  encoded.payload = std::move(contents.payload);
  encoded.attachments = std::move(contents.attachments);
  return Ask(agent, method, to, std::move(encoded), options);
}

}  // namespace psd::rpc
