#pragma once

#include "core/change/change.h"

namespace psd::change {

// Sees every change of an owner's named contents. Thread-safe.
class Journal {
 public:
  virtual ~Journal() = default;
  // A change has been applied, or cannot fail any more; nobody has been answered, and a change that
  // depends on it cannot be seen yet. The change and everything it points to are valid until this
  // returns; what is to be kept must be copied. Called on the threads of steps and of the network,
  // with write claims and locks held: it must not wait, and must call nothing of the owner.
  virtual void Append(const Change& change) = 0;
};

}  // namespace psd::change
