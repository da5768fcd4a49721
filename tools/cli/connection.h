#pragma once

// A connection to one owner's unary service.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <memory>

#include "absl/status/status.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "tools/cli/command.h"

namespace psd::cli {

// Thread-safe.
class Connection {
 public:
  explicit Connection(const Options& options);

  // Makes one call. `method` is, for example, &v1::ParameterService::Stub::List.
  // Errors: the owner's errors; UNAVAILABLE and DEADLINE_EXCEEDED name the address.
  template <typename Method, typename Request, typename Reply>
  absl::Status Call(Method method, const Request& request, Reply* reply) {
    grpc::ClientContext context;
    SetDeadline(context);
    const grpc::Status status = ((*stub_).*method)(&context, request, reply);
    return ToStatus(status, context);
  }

  // Calls the standard health check for the whole server. Errors: UNAVAILABLE if it does not serve.
  absl::Status CheckHealth();

 private:
  void SetDeadline(grpc::ClientContext& context) const;
  absl::Status ToStatus(const grpc::Status& status, const grpc::ClientContext& context) const;

  const Options options_;
  std::shared_ptr<grpc::Channel> channel_;  // shared with the stub
  std::unique_ptr<v1::ParameterService::Stub> stub_;
};

}  // namespace psd::cli
