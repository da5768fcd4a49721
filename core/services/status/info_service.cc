#include "core/services/status/info_service.h"

#include <utility>

#include "absl/status/statusor.h"
#include "core/base/future.h"
#include "core/rpc/declared_method.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {

namespace {

constexpr rpc::Declared<Unit, v1::InfoReply> kInfo{
    {"worker.info", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};

}  // namespace

InfoService::InfoService(Uses uses) : uses_(std::move(uses)) {
  rpc::Serve(uses_.agent, kInfo, this, &InfoService::ServeInfo);
}

absl::StatusOr<v1::InfoReply> InfoService::ServeInfo(const rpc::CallPtr& /*call*/, Unit) {
  v1::InfoReply reply;
  reply.set_name(uses_.agent.self().name);
  reply.set_registrar(uses_.registrar);
  return reply;
}

Future<WorkerInfo> InfoService::Ask(const std::string& worker, const rpc::CallOptions& options) {
  return rpc::Ask(uses_.agent, kInfo, {worker}, Unit{}, options)
      .Then([](const absl::StatusOr<v1::InfoReply>& reply) -> absl::StatusOr<WorkerInfo> {
        if (!reply.ok()) return reply.status();
        return WorkerInfo{reply->name(), reply->registrar()};
      });
}

}  // namespace psd::services
