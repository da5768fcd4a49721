#pragma once

#include "core/change/change.h"

namespace psd::change {

// Sees every change of an owner's named contents. Thread-safe.
class Journal {
 public:
  virtual ~Journal() = default;
  // Called when a change has been applied, or can no longer fail. Nobody has been answered yet, and
  // no change that depends on it can be seen before it. The change and everything it points to are
  // valid until this function returns; data to be kept must be copied. Called on the threads of
  // steps and of the network, with write claims and locks held, so it must neither wait nor call
  // anything of the owner.
  virtual void Append(const Change& change) = 0;
};

}  // namespace psd::change
