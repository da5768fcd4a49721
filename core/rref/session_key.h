#pragma once

// Identifies a session in the ledgers.

#include <cstdint>
#include <utility>

#include "core/base/ids.h"

namespace psd::rref {

// A session between two workers. In the owner's ledger it is the session that the incarnation
// `peer` has here; in the user's ledger it is the session that this worker has on the incarnation
// `peer`. Epochs are issued by the worker on which the session is.
struct SessionKey {
  Incarnation peer = 0;
  uint64_t epoch = 0;
  friend bool operator==(const SessionKey& a, const SessionKey& b) {
    return a.peer == b.peer && a.epoch == b.epoch;
  }
  template <typename H>
  friend H AbslHashValue(H h, const SessionKey& k) {
    return H::combine(std::move(h), k.peer, k.epoch);
  }
};

}  // namespace psd::rref
