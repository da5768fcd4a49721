#include "bench/gpu/cases.h"

#include <utility>

namespace psd::bench {

std::vector<Case> GpuCases() {
  std::vector<Case> all;
  for (auto family :
       {GpuOptimizerCases, GpuRowsCases, GpuPullCases, GpuStepCases, GpuMlpCases, GpuGroupCases}) {
    for (Case& one : family()) all.push_back(std::move(one));
  }
  return all;
}

}  // namespace psd::bench
