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

// Whether a program does nothing but initialise a floating tensor (zeros, full, uniform, normal).
// All devices compute the same bits then, in memory that nobody else has.
bool Initializes(const program::Program& program);

// Takes the elements of the change, or runs its program, without history. A program that only
// initialises runs on the change's device, if that has the kernel. All others run on the host,
// because devices round differently, and a change that is made again must give the same bits. They
// run within `limits` and the free memory of the device. With kAutoDevice the result may turn out
// to be a value for the CPU; then the free memory of the CPU counts if it is more. A table of rows
// gets memory of the device; a tensor gets it from the store. Errors: those of the program, of
// Store::FindDevice, of the device and of Rows::Create; INVALID_ARGUMENT if the program does not
// have exactly one result; RESOURCE_EXHAUSTED naming the budget, `memory` or that of the device,
// and its use.
absl::StatusOr<store::Value> MakeValue(const CreateValue& change, store::Store& store,
                                       const program::ProgramLimits& limits,
                                       const MemoryBudget& memory);

}  // namespace psd::change
