#pragma once

// The cases that run on devices. On GPUs they measure; on emulated devices their sizes are tiny,
// and they show only that they work. Each compares results with those of the CPU when it starts,
// and fails if they differ.

#include <vector>

#include "bench/workload.h"

namespace psd::bench {

std::vector<Case> GpuCases();  // all of the following

std::vector<Case> GpuOptimizerCases();  // gpu_opt_<name>, gpu_opt_small
std::vector<Case> GpuRowsCases();       // gpu_rows_lookup, gpu_rows_update
std::vector<Case> GpuPullCases();       // gpu_pull_256MiB
std::vector<Case> GpuStepCases();       // gpu_step_adam
std::vector<Case> GpuMlpCases();        // gpu_mlp
std::vector<Case> GpuGroupCases();      // gpu_allreduce

}  // namespace psd::bench
