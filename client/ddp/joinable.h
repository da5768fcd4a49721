#pragma once

// The interface of objects whose calls a rank must also make when it has run out of inputs. See
// client/ddp/uneven_inputs.h.

#include "absl/status/status.h"
#include "client/collectives/group.h"
#include "client/context.h"

namespace psd {

// An object whose collective calls belong to every iteration of all ranks.
class Joinable {
 public:
  virtual ~Joinable() = default;
  // The group in which it calls.
  virtual Group& group() const = 0;
  // Makes the calls of one iteration, with the gradients that `context` has collected. If this rank
  // has run out of inputs, `has_input` is false and the context is empty.
  virtual absl::Status Iterate(const Context& context, bool has_input) = 0;
};

}  // namespace psd
