#pragma once

// The parts that all links of one shared-memory carrier have in common: threads, timers, memory and
// the table of links.

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/executor.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/base/thread_pool.h"
#include "core/base/timer.h"
#include "core/carrier/assembler.h"
#include "core/carrier/carrier.h"
#include "core/carrier/shm/lending/quota.h"
#include "core/carrier/shm/poller.h"
#include "core/carrier/shm/process_watch.h"
#include "core/carrier/shm/ring_quota.h"
#include "core/carrier/shm/shm_factory.h"
#include "core/carrier/waiting_line.h"

namespace psd::carrier {

class ShmLink;

// The bounds of all links to one process together. Shared by these links and by the mappings of its
// segments, which may outlive them.
struct PeerQuotas {
  PeerQuotas(size_t max_lent_bytes, size_t max_mappings, size_t max_mapped_bytes)
      : lent(SIZE_MAX, max_lent_bytes), mapped(max_mappings, max_mapped_bytes) {}

  Quota lent;    // messages that are lent to it
  Quota mapped;  // its segments that are mapped
};

// Thread-safe. Shared by the carrier and its links.
class ShmCore {
 public:
  // Requires: `options` has a budget and an allocator.
  explicit ShmCore(const ShmCarrierOptions& options);

  // Starts the threads. Errors: RESOURCE_EXHAUSTED.
  absl::Status Start();

  const ShmCarrierOptions& options() const { return options_; }
  // For messages that may wait for room, and for small ones, which may not.
  const ReceiveMemory& bulk_memory() const { return bulk_memory_; }
  const ReceiveMemory& small_memory() const { return small_memory_; }
  const WaitingRules& waiting() const { return waiting_; }
  RingQuota& ring_quota() { return *ring_quota_; }
  // The quotas of the process at the other end of `socket`.
  std::shared_ptr<PeerQuotas> QuotasOf(int socket) PSD_EXCLUDES(mutex_);
  // The processes at the other ends.
  ProcessWatch& processes() { return *processes_; }
  // For the segments of all peers that are mapped.
  const std::shared_ptr<Quota>& mappings() const { return mappings_; }
  // Removes these mappings, and drops messages that were lent over links that have ended, on a
  // thread for which no link waits. After Stop it refuses, and the caller's thread does both.
  std::shared_ptr<Executor> unmapper() const { return unmapper_; }
  TimerQueue& timers() { return timers_; }
  bool may_spin() const { return may_spin_; }
  // The poller for the next link.
  ShmPoller& NextPoller();
  // Whether processes of this user may be at the other end of a link: those of this process's own
  // user, unless that is 65534 ("nobody"), because the system shows it in place of all users of
  // other user namespaces.
  bool Trusts(uid_t user) const;
  // A number for a link, unique in this carrier.
  uint64_t NextNumber() { return next_number_.fetch_add(1); }

  // Keeps `link` until Forget. Errors: UNAVAILABLE after BeginShutdown.
  absl::Status Register(std::shared_ptr<ShmLink> link) PSD_EXCLUDES(mutex_);
  // The link has called its handler for the last time, and sends nothing more. `traffic` is what it
  // has carried.
  void Forget(const std::shared_ptr<ShmLink>& link, const SharedTraffic& traffic)
      PSD_EXCLUDES(mutex_);
  // Returns all links, and what those that are forgotten have carried.
  std::vector<std::shared_ptr<ShmLink>> Links(SharedTraffic& past) const PSD_EXCLUDES(mutex_);

  // Returns all links. No link can be registered any more.
  std::vector<std::shared_ptr<ShmLink>> BeginShutdown() PSD_EXCLUDES(mutex_);
  // Waits until the last link is forgotten.
  void AwaitQuiet() PSD_EXCLUDES(mutex_);
  // Waits until the unmapper has done what it was given, and joins the threads. Requires: quiet.
  void Stop();

 private:
  const ShmCarrierOptions options_;
  const ReceiveMemory bulk_memory_;
  const ReceiveMemory small_memory_;
  const WaitingRules waiting_;
  const std::shared_ptr<RingQuota> ring_quota_;  // shared with the charges of the links
  const std::shared_ptr<Quota> mappings_;        // shared with the mappings
  const std::shared_ptr<ThreadPool> unmapper_;   // shared with the mappings and the links
  const bool may_spin_;
  TimerQueue timers_;
  const std::shared_ptr<ProcessWatch> processes_ = std::make_shared<ProcessWatch>();
  std::vector<std::unique_ptr<ShmPoller>> pollers_;  // fixed by Start
  std::atomic<size_t> next_poller_{0};
  std::atomic<uint64_t> next_number_{1};

  mutable Mutex mutex_;  // leaf
  CondVar quiet_;
  bool shutting_down_ PSD_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<std::shared_ptr<ShmLink>> links_ PSD_GUARDED_BY(mutex_);
  absl::flat_hash_map<pid_t, std::weak_ptr<PeerQuotas>> quotas_ PSD_GUARDED_BY(mutex_);
  SharedTraffic past_traffic_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::carrier
