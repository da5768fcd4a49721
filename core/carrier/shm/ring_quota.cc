#include "core/carrier/shm/ring_quota.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"

namespace psd::carrier {
namespace {

constexpr char kOwn[] = "this worker";
constexpr char kRemedy[] = "raise the budget, or use the network";

// Returns an account with the limit of all rings. A budget of 0, which means no limit, stays 0.
std::shared_ptr<MemoryAccount> ShareOf(const MemoryBudget& budget) {
  const size_t limit = budget.limit_bytes();
  return MemoryAccount::Create(limit == 0 ? 0 : std::max<size_t>(1, limit / 16), budget.transit());
}

size_t PlacesOf(const MemoryAccount& share, size_t link_bytes) {
  return share.limit_bytes() == 0 ? SIZE_MAX : share.limit_bytes() / link_bytes;
}

}  // namespace

// One link's part of the quota.
struct RingQuota::Place {
  Place(std::shared_ptr<RingQuota> quota, std::string name, MemoryCharge charge)
      : quota(std::move(quota)), name(std::move(name)), charge(std::move(charge)) {}
  ~Place() { quota->Release(name); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  const std::shared_ptr<RingQuota> quota;  // shared with its owner and the other places
  const std::string name;                  // the holder and a number, as TableShares requires
  const MemoryCharge charge;
};

RingQuota::RingQuota(const MemoryBudget& budget, size_t link_bytes)
    : link_bytes_(link_bytes), share_(ShareOf(budget)), places_(PlacesOf(*share_, link_bytes)) {}

absl::StatusOr<MemoryCharge> RingQuota::ChargeOwn() {
  return Charge(kOwn, /*may_fill=*/true);
}

absl::StatusOr<MemoryCharge> RingQuota::ChargePeer(const std::string& peer) {
  return Charge(peer, /*may_fill=*/false);
}

absl::StatusOr<MemoryCharge> RingQuota::Charge(const std::string& holder, bool may_fill) {
  absl::StatusOr<MemoryCharge> charge = share_->Charge(link_bytes_);
  if (!charge.ok()) {
    return WithRemedy(
        absl::ResourceExhaustedError(absl::StrCat(
            "a link over shared memory takes ", link_bytes_,
            " bytes, and all links of this worker take ", share_->used_bytes(), " of at most ",
            share_->limit_bytes(), ", a sixteenth of its memory budget")),
        kRemedy);
  }
  {
    MutexLock lock(mutex_);
    const std::string name = absl::StrCat(holder, ":", ++last_number_);
    if (may_fill || places_.Check(name).ok()) {
      places_.Take(name);
      return MemoryCharge(std::make_shared<Place>(shared_from_this(), name, *std::move(charge)));
    }
  }
  return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                        holder, " has so many links over shared memory that the rest of their ",
                        share_->limit_bytes(),
                        " bytes, a sixteenth of this worker's memory budget, is left to "
                        "other processes; a link takes ",
                        link_bytes_)),
                    kRemedy);
}

void RingQuota::Release(const std::string& name) {
  MutexLock lock(mutex_);
  places_.Release(name);
}

}  // namespace psd::carrier
