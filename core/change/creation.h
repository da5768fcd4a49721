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

// Runs the change's program, without history, within `limits` and the free memory of the store, or
// takes its elements. A table of rows gets memory of the store's account for the change's device;
// the store moves a tensor there. Errors: those of the program, of Store::MemoryOn and of
// Rows::Create; INVALID_ARGUMENT if the program does not have exactly one result;
// RESOURCE_EXHAUSTED naming the budget, `memory`.
absl::StatusOr<store::Value> MakeValue(const CreateValue& change, store::Store& store,
                                       const program::ProgramLimits& limits,
                                       const MemoryBudget& memory);

}  // namespace psd::change
