#pragma once

// The cases, family by family.

#include <vector>

#include "bench/workload.h"

namespace psd::bench {

std::vector<Case> CallCases();       // call_empty, call_64
std::vector<Case> PullCases();       // pull_16MiB, pull_256MiB
std::vector<Case> PushCases();       // push_16MiB, push_256MiB
std::vector<Case> StepCases();       // step_sgd, step_adam, step_small…, step_halves, step_one
std::vector<Case> FloodCases();      // step_beside_flood
std::vector<Case> OptimizerCases();  // opt_<name>, opt_small
std::vector<Case> RowsCases();       // rows_lookup, rows_update, embedding
std::vector<Case> GraphCases();      // autograd_1000, program_20
std::vector<Case> ReferenceCases();  // rrefs_1M, rrefs_1M_release
std::vector<Case> MixedCases();      // calls_mixed
std::vector<Case> TrainerCases();    // trainers_1, _2, _4, trainers_idle
std::vector<Case> GroupCases();      // allreduce_<size>_<ranks>, ddp_…_<ranks>, zero_step_<ranks>
std::vector<Case> MemoryCases();     // memory, memory_dropped
std::vector<Case> SavingCases();     // save, save_steps

}  // namespace psd::bench
