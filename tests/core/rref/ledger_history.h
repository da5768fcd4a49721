#pragma once

// Random histories for a simulation, and the shortest one that still breaks it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

namespace psd::rref::sim {

// What happens next. What the numbers mean depends on the world that the step meets, so every list
// of steps is a history, also one with steps left out.
struct Step {
  uint32_t action = 0;
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
};
using History = std::vector<Step>;

// Always the same for one seed.
History RandomHistory(uint64_t seed, size_t steps);

// The shortest history found by leaving steps out of `history`, which is `broken`, that is so too:
// none of its steps can be left out alone.
History Shrink(History history, absl::FunctionRef<bool(const History&)> broken);

// "{action, a, b, c}, …": to be put into a test.
std::string ToString(const History& history);

}  // namespace psd::rref::sim
