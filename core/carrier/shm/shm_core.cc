#include "core/carrier/shm/shm_core.h"

#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/carrier/shm/spin_policy.h"
#include "core/carrier/shm/unix_socket.h"

namespace psd::carrier {
namespace {

// The system shows this user in the place of every user that this user namespace does not know.
constexpr uid_t kUnknownUser = 65534;

// The most segments of peers that are mapped: they take at most a quarter of the mappings that a
// process may have by default (vm.max_map_count), and those of one peer a quarter of that.
constexpr size_t kMostMappings = 16384;
constexpr size_t kPeersThatFill = 4;

// One thread, because the system removes the mappings of a process one after another. Half of the
// queue has a place for each mapping; the other half is for other flows, of which there are none.
// A link that ends may submit one task; if the queue is full, the thread of the link does the work.
ThreadPoolOptions ForUnmapping() {
  ThreadPoolOptions options;
  options.purpose = "unmapping lent memory";
  options.threads = 1;
  options.max_queue = 2 * kMostMappings;
  return options;
}

size_t MaxLentBytes(const ShmCarrierOptions& options) {
  constexpr size_t kDefault = size_t{4} << 30;
  if (options.max_lent_bytes != 0) return options.max_lent_bytes;
  const size_t budget = options.memory->limit_bytes();
  return budget == 0 ? kDefault : budget / 4;
}

}  // namespace

ShmCore::ShmCore(const ShmCarrierOptions& options)
    : options_(options),
      bulk_memory_{options.allocator, options.memory->transit()},
      small_memory_{options.memory->essential(), options.memory->essential()},
      waiting_{options.line != nullptr ? options.line : std::make_shared<WaitingLine>(),
               options.room_patience},
      ring_quota_(std::make_shared<RingQuota>(*options.memory, options.rings.SegmentBytes())),
      mappings_(std::make_shared<Quota>(kMostMappings, kPeersThatFill * options.max_mapped_bytes)),
      unmapper_(std::make_shared<ThreadPool>(ForUnmapping())),
      may_spin_(options.spin && UsableProcessors() > 1) {}

absl::Status ShmCore::Start() {
  PSD_RETURN_IF_ERROR(timers_.started());
  PSD_RETURN_IF_ERROR(unmapper_->started());
  for (int i = 1; i <= options_.poll_threads; ++i) {
    PSD_ASSIGN_OR_RETURN(auto poller,
                         ShmPoller::Create(absl::StrCat("thread ", i, " of ", options_.poll_threads,
                                                        " for shared memory")));
    pollers_.push_back(std::move(poller));
  }
  return absl::OkStatus();
}

std::shared_ptr<PeerQuotas> ShmCore::QuotasOf(int socket) {
  const absl::StatusOr<PeerProcess> peer = PeerOf(socket);
  // Processes that the system does not name share the number 0.
  const pid_t pid = peer.ok() ? peer->pid : 0;
  MutexLock lock(mutex_);
  std::shared_ptr<PeerQuotas> quotas = quotas_[pid].lock();
  if (quotas != nullptr) return quotas;
  absl::erase_if(quotas_, [](const auto& entry) { return entry.second.expired(); });
  quotas = std::make_shared<PeerQuotas>(MaxLentBytes(options_), kMostMappings / kPeersThatFill,
                                        options_.max_mapped_bytes);
  quotas_[pid] = quotas;
  return quotas;
}

ShmPoller& ShmCore::NextPoller() {
  return *pollers_[next_poller_.fetch_add(1) % pollers_.size()];
}

bool ShmCore::Trusts(uid_t user) const {
  return user != kUnknownUser && user == geteuid();
}

absl::Status ShmCore::Register(std::shared_ptr<ShmLink> link) {
  MutexLock lock(mutex_);
  if (shutting_down_) return absl::UnavailableError("this carrier was shut down");
  links_.insert(std::move(link));
  return absl::OkStatus();
}

void ShmCore::Forget(const std::shared_ptr<ShmLink>& link, const SharedTraffic& traffic) {
  MutexLock lock(mutex_);
  past_traffic_ += traffic;
  links_.erase(link);
  if (links_.empty()) quiet_.NotifyAll();
}

std::vector<std::shared_ptr<ShmLink>> ShmCore::Links(SharedTraffic& past) const {
  MutexLock lock(mutex_);
  past = past_traffic_;
  return {links_.begin(), links_.end()};
}

std::vector<std::shared_ptr<ShmLink>> ShmCore::BeginShutdown() {
  MutexLock lock(mutex_);
  shutting_down_ = true;
  return {links_.begin(), links_.end()};
}

void ShmCore::AwaitQuiet() {
  MutexLock lock(mutex_);
  while (!links_.empty()) quiet_.Wait(mutex_);
}

void ShmCore::Stop() {
  timers_.Stop();
  for (const std::unique_ptr<ShmPoller>& poller : pollers_) poller->Stop();
  unmapper_->Shutdown();
}

}  // namespace psd::carrier
