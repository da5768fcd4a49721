#include <utility>

#include "bench/gpu/cases.h"
#include "bench/workloads/cases.h"

namespace psd::bench {

std::vector<Case> AllCases() {
  std::vector<Case> all;
  for (auto family : {CallCases, MixedCases, PullCases, PushCases, StepCases, FloodCases,
                      GraphCases, OptimizerCases, RowsCases, TrainerCases, GroupCases, MemoryCases,
                      ReferenceCases, SavingCases, GpuCases}) {
    for (Case& one : family()) all.push_back(std::move(one));
  }
  return all;
}

}  // namespace psd::bench
