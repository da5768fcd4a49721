#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>

#include <memory>
#include <string>
#include <vector>

#include "proto/psd/v1/service.grpc.pb.h"
#include "tests/attack/memory_attack.h"

namespace psd::attack {

// Calls of the unary service, many at once, whose answers nobody reads before Await.
class UnaryClient {
 public:
  using Stub = v1::ParameterService::Stub;

  explicit UnaryClient(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::ParameterService::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }
  ~UnaryClient() { queue_.Shutdown(); }

  Stub& stub() { return *stub_; }
  template <typename Request, typename Reply>
  void Begin(std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> (Stub::*prepare)(
                 grpc::ClientContext*, const Request&, grpc::CompletionQueue*),
             const Request& request) {
    auto call = std::make_unique<Pending<Reply>>();
    call->reader = (stub_.get()->*prepare)(&call->context, request, &queue_);
    call->reader->StartCall();
    call->reader->Finish(&call->reply, &call->status, call.get());
    calls_.push_back(std::move(call));
  }
  void Await(Answers& answers) {
    void* tag = nullptr;
    bool ok = false;
    for (size_t i = 0; i < calls_.size(); ++i) queue_.Next(&tag, &ok);
    for (const auto& call : calls_) answers.Count(call->status);
    calls_.clear();
  }

 private:
  struct AnyPending {
    virtual ~AnyPending() = default;
    grpc::ClientContext context;
    grpc::Status status;
  };
  template <typename Reply>
  struct Pending : AnyPending {
    Reply reply;
    std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> reader;
  };

  std::unique_ptr<Stub> stub_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<AnyPending>> calls_;
};

}  // namespace psd::attack
