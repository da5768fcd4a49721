#include "bench/runner.h"

#include <memory>
#include <optional>
#include <vector>

#include "bench/stats.h"
#include "core/base/status.h"

namespace psd::bench {
namespace {

// The costs of all blocks of a case.
struct Costs {
  std::vector<double> operations;  // of every single operation of psd
  std::vector<double> psd;         // medians, by block
  std::vector<double> floor;
  std::vector<double> peer;
};

absl::Status RunOneBlock(const std::string& name, Workload& workload, Peer* peer, Costs* costs) {
  PSD_ASSIGN_OR_RETURN(const std::vector<double> operations, workload.RunPsd());
  costs->operations.insert(costs->operations.end(), operations.begin(), operations.end());
  costs->psd.push_back(Median(operations));
  PSD_ASSIGN_OR_RETURN(const std::optional<double> floor, workload.RunFloor());
  if (floor.has_value()) costs->floor.push_back(*floor);
  if (peer == nullptr) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(const double seconds, peer->RunBlock(name));
  costs->peer.push_back(seconds);
  return absl::OkStatus();
}

Row Summarize(const Case& one, const std::string& carrier, const Costs& costs) {
  Row row;
  row.name = one.name;
  row.carrier = carrier;
  row.unit = one.unit.name;
  row.value = one.unit.Show(Median(costs.psd));
  if (one.latency) row.p99 = one.unit.Show(Quantile(costs.operations, 0.99));
  if (!costs.floor.empty()) {
    const std::vector<double> efficiency = Ratios(costs.floor, costs.psd);
    row.floor = one.unit.Show(Median(costs.floor));
    row.efficiency = Median(efficiency);
    if (efficiency.size() > 1) row.spread = Spread(efficiency);
  }
  if (!costs.peer.empty()) {
    const std::vector<double> speedup = Ratios(costs.peer, costs.psd);
    row.peer = one.unit.Show(Median(costs.peer));
    row.speedup = Median(speedup);
    row.spread = Spread(speedup);
  }
  return row;
}

}  // namespace

absl::StatusOr<Row> RunCase(const Case& one, const Environment& environment, Peer* peer) {
  const std::unique_ptr<Workload> workload = one.make();
  PSD_RETURN_IF_ERROR(workload->Start(environment));
  if (!one.has_peer) peer = nullptr;
  if (peer != nullptr) PSD_RETURN_IF_ERROR(peer->StartCase(one.name));
  Costs costs;
  for (int block = 0; block < one.blocks; ++block) {
    PSD_RETURN_IF_ERROR(RunOneBlock(one.name, *workload, peer, &costs));
  }
  if (peer != nullptr) PSD_RETURN_IF_ERROR(peer->StopCase(one.name));
  return Summarize(one, one.sends ? environment.carrier : "none", costs);
}

}  // namespace psd::bench
