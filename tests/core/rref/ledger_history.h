#pragma once

// Random histories for a simulation, and a search for a short one that still breaks it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

namespace psd::rref::sim {

// One event. The meaning of the numbers depends on the state of the world, so every list of steps
// is a valid history, also a list with steps left out.
struct Step {
  uint32_t action = 0;
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
};
using History = std::vector<Step>;

// The history is always the same for a seed.
History RandomHistory(uint64_t seed, size_t steps);

// Leaves steps out of `history` as long as the result is still `broken`. No single step of the
// returned history can be left out. Requires: broken(history).
History Shrink(History history, absl::FunctionRef<bool(const History&)> broken);

// Formats a history as "{action, a, b, c}, …", which can be pasted into a test.
std::string ToString(const History& history);

}  // namespace psd::rref::sim
