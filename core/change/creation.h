#pragma once

// Makes the value of a CreateValue.

#include "absl/status/statusor.h"
#include "core/base/memory_budget.h"
#include "core/change/change.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"
#include "core/store/store.h"
#include "core/store/value.h"

namespace psd::change {

// Runs the change's program without history, within `limits` and the free memory of the change's
// device (with kAutoDevice, if the result may be a value for the CPU, of the chosen device or of
// the CPU, whichever is more), or takes its elements. A program of one operator runs on the device,
// so its result needs no memory of the host; all others run on the host, because devices round
// differently, and a change that is made again must give the same bits. A table of rows gets memory
// of the device; the store moves a tensor there. Errors: those of the program, of
// Store::FindDevice, of the device and of Rows::Create; INVALID_ARGUMENT if the program does not
// have exactly one result; RESOURCE_EXHAUSTED naming the budget, `memory` or that of the device,
// and its use.
absl::StatusOr<store::Value> MakeValue(const CreateValue& change, store::Store& store,
                                       const program::ProgramLimits& limits,
                                       const MemoryBudget& memory);

}  // namespace psd::change
