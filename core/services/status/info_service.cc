#include "core/services/status/info_service.h"
#include "core/rpc/message_io.h"

#include <utility>

#include "core/dist_autograd/exchange.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {

InfoService::InfoService(Uses uses) : uses_(std::move(uses)) {
  uses_.agent.RegisterMethod({"worker.info", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread,
                              [this](std::shared_ptr<rpc::ServerCall> call) {
                                v1::InfoReply reply;
                                reply.set_name(uses_.agent.self().name);
                                reply.set_registrar(uses_.registrar);
                                call->Reply(rpc::PlainPayload(reply));
                              }});
}

Future<WorkerInfo> InfoService::Ask(const std::string& worker, const rpc::CallOptions& options) {
  rpc::Request request;
  request.method = "worker.info";
  return uses_.agent.StartCall(worker, std::move(request), options)
      .reply()
      .Then([](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<WorkerInfo> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(
            auto message, rpc::ParseMessage<v1::InfoReply>(reply->payload.header, "worker.info"));
        return WorkerInfo{message.name(), message.registrar()};
      });
}

}  // namespace psd::services
