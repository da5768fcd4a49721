#pragma once

// Calls of unary methods on the carrier's completion queue. gRPC hands over the bytes of a request,
// so that its memory is charged before it is parsed.

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_unary_call.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/executor.h"
#include "core/base/memory_budget.h"
#include "core/base/tsan.h"
#include "core/carrier/grpc/completion_tag.h"
#include "core/carrier/grpc/grpc_server_hook.h"
#include "server/services/raw_messages.h"

namespace psd::server {

// One call as its handler sees it.
class UnaryCall {
 public:
  grpc::ServerContext& context() { return context_; }
  // Returns the address of the client: "ipv4:10.0.0.5:41234". The first call of this function takes
  // a lock.
  const std::string& peer() {
    if (peer_.empty()) peer_ = context_.peer();
    return peer_;
  }
  // Answers with the reply, or with an error. Must be called once, on any thread. The call, its
  // request and its reply may not be used afterwards.
  virtual void Finish(const grpc::Status& status) = 0;

  // Keeps `charge` until the call is gone. To be called before Finish.
  void Hold(MemoryCharge charge) { held_.push_back(std::move(charge)); }

 protected:
  ~UnaryCall() = default;
  // To be called when what was charged for is gone.
  void Release() { held_.clear(); }

 private:
  grpc::ServerContext context_;
  std::string peer_;
  std::vector<MemoryCharge> held_;
};

// One method and the function that serves it.
template <typename Request, typename Reply>
struct UnaryMethod {
  // Requests the next call from the service: calls the generated RequestX of a raw method with
  // these arguments.
  using Ask = std::function<void(grpc::ServerContext*, grpc::ByteBuffer*,
                                 grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>*,
                                 grpc::CompletionQueue*, grpc::ServerCompletionQueue*, void* tag)>;
  Ask ask;
  // Called before a request is parsed, with the bytes that it takes before and after parsing. A
  // large one is charged in two calls: its bytes, and then what parsing adds. An error is the
  // call's answer.
  std::function<grpc::Status(UnaryCall& call, size_t bytes)> charge;
  // Serves one call. Runs on one of the carrier's threads, or where `elsewhere` runs its tasks, so
  // it must not take long.
  std::function<void(UnaryCall& call, const Request& request, Reply& reply)> handle;
  // Runs `task` on another thread, now or later. An error is the call's answer, and `task` has not
  // run. Requests of more than kReadHere bytes are parsed and handled there: a carrier's
  // thread that counts the elements of large ones, one after the other, would not hear from any
  // peer for so long that they all give up their connections. Null: no request is large.
  std::function<grpc::Status(UnaryCall& call, Task task)> elsewhere;
};

inline constexpr size_t kReadHere = size_t{64} << 10;

namespace internal {

template <typename Request, typename Reply>
class ServedUnaryCall final : public UnaryCall, public carrier::CompletionTag {
 public:
  using Method = UnaryMethod<Request, Reply>;

  // Requests the next call. `method` is passed by value because the call may be deleted before its
  // functions return.
  static void Await(carrier::ServiceHost& host, std::shared_ptr<const Method> method) {
    std::function<void()> gone = host.CountCall();
    if (gone == nullptr) return;
    // Deletes itself when it is completed for the last time.
    auto* call = new ServedUnaryCall(host, method, std::move(gone));
    method->ask(&call->context(), &call->received_, &call->writer_, host.queue(), host.queue(),
                call->Tag());
  }

  void Finish(const grpc::Status& status) override {
    finished_ = true;
    grpc::ByteBuffer reply;
    const grpc::Status result = status.ok() ? ToBytes(reply_, reply) : status;
    // The client may take its time to read the answer.
    Request().Swap(&request_);
    Reply().Swap(&reply_);
    if (result.ok()) {
      writer_.Finish(reply, result, Tag());
    } else {
      writer_.FinishWithError(result, Tag());
    }
  }

 private:
  ServedUnaryCall(carrier::ServiceHost& host, std::shared_ptr<const Method> method,
                  std::function<void()> gone)
      : host_(host), method_(std::move(method)), writer_(&context()), gone_(std::move(gone)) {}

  void* Tag() {
    carrier::CompletionTag* tag = this;
    PSD_TSAN_RELEASE(tag);
    return tag;
  }

  void Complete(bool ok) override {
    if (finished_ || !ok) {
      const std::function<void()> gone = std::move(gone_);
      delete this;
      return gone();
    }
    const std::shared_ptr<const Method> method = method_;
    host_.OnCall(context());
    Await(host_, method);
    if (method->elsewhere == nullptr || received_.Length() <= kReadHere) return Serve();
    grpc::Status taken = TakeOut(*method);
    if (taken.ok()) taken = method->elsewhere(*this, [this] { Serve(); });
    if (!taken.ok()) Refuse(taken);
  }

  // Charges for the bytes that were received, and copies them, because while they wait others need
  // gRPC's memory for what it receives.
  grpc::Status TakeOut(const Method& method) {
    const size_t bytes = received_.Length();
    const grpc::Status charged = method.charge(*this, bytes);
    if (!charged.ok()) return charged;
    charged_ = bytes;
    grpc::Slice copy;
    const grpc::Status copied = received_.DumpToSingleSlice(&copy);
    if (copied.ok()) received_ = grpc::ByteBuffer(&copy, 1);
    return copied;
  }

  void Serve() {
    const std::shared_ptr<const Method> method = method_;  // outlives the call
    const grpc::Status charged = method->charge(*this, MemoryOf<Request>(received_) - charged_);
    if (!charged.ok()) return Refuse(charged);
    const grpc::Status parsed = ParseBytes(received_, request_);
    if (!parsed.ok()) return Finish(parsed);
    method->handle(*this, request_, reply_);
  }

  void Refuse(const grpc::Status& error) {
    received_.Clear();  // the client may take its time to read the error
    Release();
    Finish(error);
  }

  carrier::ServiceHost& host_;
  const std::shared_ptr<const Method> method_;  // shared by all calls of the method
  grpc::ByteBuffer received_;
  size_t charged_ = 0;  // for what of the request was charged already
  Request request_;
  Reply reply_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> writer_;
  std::function<void()> gone_;
  bool finished_ = false;
};

}  // namespace internal

// Serves calls of `method` until the carrier shuts down.
template <typename Request, typename Reply>
void ServeUnary(carrier::ServiceHost& host, UnaryMethod<Request, Reply> method) {
  internal::ServedUnaryCall<Request, Reply>::Await(
      host, std::make_shared<const UnaryMethod<Request, Reply>>(std::move(method)));
}

}  // namespace psd::server
