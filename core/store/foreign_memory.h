#pragma once

#include "absl/status/statusor.h"
#include "core/base/memory_budget.h"
#include "core/store/value.h"

namespace psd::store {

// Returns `value` with copies of those tensors whose elements another process lent
// (MemoryPlace::Kind::kForeign). An owner must not host such memory: the other process may change
// it, and a value may be kept for long. Large copies are charged to `memory`, smaller ones to the
// thread's MemoryScope. Objects are left as they are. Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<Value> CopyForeignMemory(Value value, MemoryAccount& memory);

}  // namespace psd::store
