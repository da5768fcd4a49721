#include "core/worker/info_service.h"

#include "core/worker/exchange.h"
#include "core/worker/runtime.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::worker {

InfoService::InfoService(Runtime& runtime) : runtime_(runtime) {
  runtime_.RegisterMethod({"worker.info", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread,
                           [this](std::shared_ptr<rpc::ServerCall> call) {
                             v1::InfoReply reply;
                             reply.set_name(runtime_.name());
                             reply.set_registrar(runtime_.options().registrar);
                             call->Reply(PlainPayload(reply));
                           }});
}

Future<WorkerInfo> InfoService::Ask(const std::string& worker, const rpc::CallOptions& options) {
  rpc::Request request;
  request.method = "worker.info";
  return runtime_.agent()
      .StartCall(worker, std::move(request), options)
      .reply()
      .Then([](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<WorkerInfo> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(auto message,
                             ParseMessage<v1::InfoReply>(reply->payload.header, "worker.info"));
        return WorkerInfo{message.name(), message.registrar()};
      });
}

}  // namespace psd::worker
