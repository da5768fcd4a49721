#pragma once

// The part of a worker's memory budget that all rings may take, and the part that one peer may
// take.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/base/table_shares.h"

namespace psd::carrier {

// All links together take at most a sixteenth of the budget, so that most of it is left to messages
// and values. A link for which there is no room uses the network. While half of the room is free,
// any process may take of it. After that, a process may hold as many links as there is still room
// for (table_shares.h), so that no process keeps the others from shared memory. Thread-safe. Shared
// by its owner and the charges.
class RingQuota : public std::enable_shared_from_this<RingQuota> {
 public:
  // A budget without limit means a quota without limit. Each link takes `link_bytes`.
  RingQuota(const MemoryBudget& budget, size_t link_bytes);

  // Charges a link that this worker opens. Errors: RESOURCE_EXHAUSTED naming use and limit.
  absl::StatusOr<MemoryCharge> ChargeOwn() PSD_EXCLUDES(mutex_);
  // Charges a link that the process `peer` ("user 1000, process 77") opens. Errors:
  // RESOURCE_EXHAUSTED, also if the process holds too many links.
  absl::StatusOr<MemoryCharge> ChargePeer(const std::string& peer) PSD_EXCLUDES(mutex_);

 private:
  struct Place;

  absl::StatusOr<MemoryCharge> Charge(const std::string& holder, bool may_fill)
      PSD_EXCLUDES(mutex_);
  void Release(const std::string& name) PSD_EXCLUDES(mutex_);

  const size_t link_bytes_;
  const std::shared_ptr<MemoryAccount> share_;  // shared with the charges
  Mutex mutex_;                                 // leaf
  TableShares places_ PSD_GUARDED_BY(mutex_);
  uint64_t last_number_ PSD_GUARDED_BY(mutex_) = 0;
};

}  // namespace psd::carrier
