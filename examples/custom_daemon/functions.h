#pragma once

#include "client/psd.h"

namespace psd::examples {

// What this daemon offers beside the built-in:
//   standardize(x) -> x with mean 0 and deviation 1
//   replay_buffer.new(capacity) -> a ReplayBuffer; call it with Remote, which leaves it on its
//   owner replay_buffer.append(rref, sample) -> size replay_buffer.sample(rref, count, seed) ->
//   samples replay_buffer.when_filled(rref, count) -> size, when so many are there
FunctionRegistry MakeFunctions();

}  // namespace psd::examples
