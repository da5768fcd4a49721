#include "client/model_parts.h"

#include <algorithm>
#include <set>

#include "core/base/status.h"

namespace psd {

using optim::LifeOwner;
using optim::PartReport;

std::vector<PartReport> ReportsOf(const std::string& name, const ContentsByOwner& contents) {
  std::vector<PartReport> reports;
  for (const auto& [owner, hosts] : contents) {
    PartReport& report = reports.emplace_back();
    report.owner = {owner, hosts.incarnation};
    for (const services::HostedOptimizer& hosted : hosts.optimizers) {
      if (hosted.optimizer.name != name) continue;
      report.hosted = true;
      report.life = hosted.life;
      report.steps = hosted.optimizer.steps_accepted;
    }
  }
  return reports;
}

absl::Status CheckWholeModel(const ContentsByOwner& contents,
                             absl::FunctionRef<bool(const std::string& owner)> may_miss) {
  std::set<std::string> names;
  for (const auto& [owner, hosts] : contents)
    for (const services::HostedOptimizer& hosted : hosts.optimizers)
      names.insert(hosted.optimizer.name);
  for (const std::string& name : names) {
    std::vector<PartReport> reports = ReportsOf(name, contents);
    for (PartReport& report : reports) {
      std::vector<LifeOwner>& owners = report.life.owners;
      owners.erase(std::remove_if(owners.begin(), owners.end(),
                                  [&](const LifeOwner& each) {
                                    return contents.count(each.name) == 0 && may_miss(each.name);
                                  }),
                   owners.end());
    }
    PSD_RETURN_IF_ERROR(optim::CheckWhole(name, reports));
  }
  return absl::OkStatus();
}

}  // namespace psd
