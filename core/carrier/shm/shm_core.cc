#include "core/carrier/shm/shm_core.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/carrier/shm/spin_policy.h"

namespace psd::carrier {
namespace {

// The system shows this user in the place of every user that this user namespace does not know.
constexpr uid_t kUnknownUser = 65534;

// Returns an account with the limit of all rings. 0, no limit, stays 0.
std::shared_ptr<MemoryAccount> RingShare(const MemoryBudget& budget) {
  const size_t limit = budget.limit_bytes();
  return MemoryAccount::Create(limit == 0 ? 0 : std::max<size_t>(1, limit / 16), budget.transit());
}

}  // namespace

ShmCore::ShmCore(const ShmCarrierOptions& options)
    : options_(options),
      bulk_memory_{options.allocator, options.memory->transit()},
      small_memory_{options.memory->essential(), options.memory->essential()},
      waiting_{options.line != nullptr ? options.line : std::make_shared<WaitingLine>(),
               options.room_patience},
      ring_share_(RingShare(*options.memory)),
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

absl::StatusOr<MemoryCharge> ShmCore::ChargeRings() {
  const size_t bytes = options_.rings.SegmentBytes();
  absl::StatusOr<MemoryCharge> charge = ring_share_->Charge(bytes);
  if (charge.ok()) return charge;
  return WithRemedy(
      absl::ResourceExhaustedError(absl::StrCat(
          "a link over shared memory takes ", bytes, " bytes, and all links of this worker take ",
          ring_share_->used_bytes(), " of at most ", ring_share_->limit_bytes(),
          ", a sixteenth of its memory budget")),
      "raise the budget, or use the network");
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

void ShmCore::Forget(const std::shared_ptr<ShmLink>& link) {
  MutexLock lock(mutex_);
  links_.erase(link);
  if (links_.empty()) quiet_.NotifyAll();
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
