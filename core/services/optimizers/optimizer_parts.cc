// The owners' reports on their parts of named optimizers, on the client and the server side.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/collect.h"
#include "core/base/status.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/optim/owner/life_codec.h"
#include "core/rpc/declared_method.h"
#include "core/services/optimizers/optimizer_methods.h"
#include "core/services/optimizers/optimizer_service.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {

Future<optim::PartReport> OptimizerService::Part(const std::string& owner, const std::string& name,
                                                 const rpc::CallOptions& options) {
  v1::PartRequest message;
  message.set_name(name);
  return rpc::Ask(uses_.agent, kOptimizerPart, {owner}, message, options)
      .Then(
          [owner](const absl::StatusOr<v1::PartReply>& reply) -> absl::StatusOr<optim::PartReport> {
            if (!reply.ok()) return reply.status();
            optim::PartReport report{{owner, reply->incarnation()}, reply->hosted(), {}, 0};
            PSD_ASSIGN_OR_RETURN(report.life, optim::DecodeReportedLife(*reply));
            report.steps = reply->steps_accepted();
            return report;
          });
}

optim::PartReport OptimizerService::ReportHere(const std::string& name) const {
  optim::PartReport report{{uses_.agent.self().name, uses_.agent.self().incarnation}, false, {}, 0};
  const auto entry = uses_.store.Lookup(name);
  // A value of another kind under this name is not reported here. The creation will report it,
  // naming both kinds.
  const auto optimizer = entry.ok() ? optim::OptimizerOf(**entry) : nullptr;
  if (optimizer == nullptr) return report;
  optim::OptimizerLife life = optimizer->life();
  if (life.stage == optim::LifeStage::kEnded) return report;
  report.hosted = true;
  report.life = std::move(life);
  report.steps = optimizer->stats().steps;
  return report;
}

absl::StatusOr<v1::PartReply> OptimizerService::ServePart(const rpc::CallPtr& call,
                                                          v1::PartRequest request) {
  PSD_RETURN_IF_ERROR(
      uses_.agent.access().Authorize(rpc::AskerOf(*call), rpc::Right::kRead, request.name()));
  const optim::PartReport report = ReportHere(request.name());
  v1::PartReply reply;
  reply.set_incarnation(report.owner.incarnation);
  if (report.hosted) {
    reply.set_hosted(true);
    optim::EncodeReportedLife(report.life, reply);
    reply.set_steps_accepted(report.steps);
  }
  return reply;
}

Future<Unit> OptimizerService::CheckHere(const std::string& name, const rpc::CallOptions& options) {
  const optim::PartReport here = ReportHere(name);
  if (!here.hosted) return Future<Unit>::Ready(Unit{});
  std::vector<Future<optim::PartReport>> others;
  for (const optim::LifeOwner& owner : here.life.owners) {
    if (owner.name == uses_.agent.self().name) continue;
    others.push_back(
        Part(owner.name, name, options).Then([](const absl::StatusOr<optim::PartReport>& report) {
          return absl::StatusOr<optim::PartReport>(report.value_or(optim::PartReport{}));
        }));
  }
  return CollectAll(others).Then(
      [name, here](
          const absl::StatusOr<std::vector<optim::PartReport>>& answers) -> absl::StatusOr<Unit> {
        if (!answers.ok()) return answers.status();
        std::vector<optim::PartReport> reports = {here};
        for (const optim::PartReport& report : *answers)
          if (!report.owner.name.empty()) reports.push_back(report);
        const std::vector<optim::PartReport> reached = reports;
        for (optim::PartReport& report : reports) {
          std::vector<optim::LifeOwner>& owners = report.life.owners;
          owners.erase(std::remove_if(owners.begin(), owners.end(),
                                      [&](const optim::LifeOwner& each) {
                                        return optim::FindReport(reached, each.name) == nullptr;
                                      }),
                       owners.end());
        }
        PSD_RETURN_IF_ERROR(optim::CheckWhole(name, reports));
        return Unit{};
      });
}

absl::Status OptimizerService::CheckStepHere(const std::string& name,
                                             const optim::OwnerOptimizer& part) const {
  const std::vector<optim::LifeOwner> owners = part.life().owners;
  // A single owner keeps all of it or loses all of it.
  if (owners.size() < 2) return absl::OkStatus();
  for (const rpc::PeerStatus& status : uses_.agent.Peers()) {
    for (const optim::LifeOwner& owner : owners) {
      if (status.peer.name == owner.name && status.peer.incarnation != 0 &&
          status.peer.incarnation != owner.incarnation)
        return optim::RestartedOwner(name, owner.name);
    }
  }
  if (!part.waits()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("optimizer '", name, "' lies on ", owners.size(),
                   " owners, and its steps wait for each other in an order that its lead decides: "
                   "step it with a DistributedOptimizer, which tells all owners"));
}

}  // namespace psd::services
