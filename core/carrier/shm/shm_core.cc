#include "core/carrier/shm/shm_core.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/carrier/shm/spin_policy.h"

namespace psd::carrier {
namespace {

// The system shows this user in the place of every user that this user namespace does not know.
constexpr uid_t kUnknownUser = 65534;

// The most segments of peers that are mapped: all links together take a quarter of the mappings
// that a process may have by default (vm.max_map_count), and one link a quarter of that.
constexpr size_t kMostMappings = 16384;
constexpr size_t kLinksThatFill = 4;

// The most bytes that are lent to a peer by a worker whose budget has no limit.
constexpr size_t kDefaultLentBytes = size_t{4} << 30;

}  // namespace

ShmCore::ShmCore(const ShmCarrierOptions& options)
    : options_(options),
      bulk_memory_{options.allocator, options.memory->transit()},
      small_memory_{options.memory->essential(), options.memory->essential()},
      waiting_{options.line != nullptr ? options.line : std::make_shared<WaitingLine>(),
               options.room_patience},
      ring_quota_(std::make_shared<RingQuota>(*options.memory, options.rings.SegmentBytes())),
      mappings_(
          std::make_shared<MappingQuota>(kMostMappings, kLinksThatFill * options.max_mapped_bytes)),
      may_spin_(options.spin && UsableProcessors() > 1) {}

absl::Status ShmCore::Start() {
  PSD_RETURN_IF_ERROR(timers_.started());
  for (int i = 1; i <= options_.poll_threads; ++i) {
    PSD_ASSIGN_OR_RETURN(auto poller,
                         ShmPoller::Create(absl::StrCat("thread ", i, " of ", options_.poll_threads,
                                                        " for shared memory")));
    pollers_.push_back(std::move(poller));
  }
  return absl::OkStatus();
}

size_t ShmCore::max_lent_bytes() const {
  if (options_.max_lent_bytes != 0) return options_.max_lent_bytes;
  const size_t budget = options_.memory->limit_bytes();
  return budget == 0 ? kDefaultLentBytes : budget / 4;
}

std::shared_ptr<MappingQuota> ShmCore::mappings_of_link() const {
  return std::make_shared<MappingQuota>(kMostMappings / kLinksThatFill, options_.max_mapped_bytes);
}

ShmPoller& ShmCore::NextPoller() {
  return *pollers_[next_poller_.fetch_add(1) % pollers_.size()];
}

bool ShmCore::Trusts(uid_t user) const {
  const std::vector<uid_t>& users = options_.users;
  return user != kUnknownUser &&
         (user == geteuid() || std::find(users.begin(), users.end(), user) != users.end());
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
}

}  // namespace psd::carrier
