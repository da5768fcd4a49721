#pragma once

#include "client/psd.h"

namespace psd::examples {

// Returns the functions that this daemon offers:
//   standardize(x) -> x with mean 0 and deviation 1
//   standardize_from(rref) -> a reference to the result for a tensor on any owner, kept here
//   replay_buffer.new(capacity) -> a ReplayBuffer; call it by Remote, which leaves it on this owner
//   replay_buffer.append(rref, sample) -> size
//   replay_buffer.sample(rref, count, seed) -> samples
//   replay_buffer.when_filled(rref, count) -> size, once the buffer holds `count` samples
FunctionRegistry MakeFunctions();

}  // namespace psd::examples
