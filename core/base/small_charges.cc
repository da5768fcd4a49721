#include "core/base/small_charges.h"

#include <utility>
#include <vector>

#include "core/base/mutex.h"

namespace psd {
namespace {

constexpr size_t kMaxAccounts = 65'535;
// What one call may take of the share for small calls.
constexpr size_t kModestBytes = size_t{256} << 10;

// The accounts of the process, by id - 1. Never destroyed, because threads that end move their sums
// while the process ends.
struct Accounts {
  Mutex mutex;  // leaf
  std::vector<std::shared_ptr<SmallCharges>> all PSD_GUARDED_BY(mutex);
};
Accounts& AllAccounts() {
  static Accounts& accounts = *new Accounts;
  return accounts;
}

SmallCharges& AccountOf(SmallChargesId id) {
  Accounts& accounts = AllAccounts();
  MutexLock lock(accounts.mutex);
  return *accounts.all[id - 1];
}

// Makes `id` the account of this thread.
void SwitchTo(SmallChargesId id) {
  struct AtThreadEnd {
    ~AtThreadEnd() {
      internal::MoveAll();
      internal::unmoved_charges.id = 0;
    }
  };
  thread_local AtThreadEnd at_end;
  static_cast<void>(at_end);
  if (internal::unmoved_charges.id == id) return;
  internal::MoveAll();
  internal::unmoved_charges.id = id;
}

}  // namespace

SmallChargesId KeepSmallCharges(std::shared_ptr<SmallCharges> account) {
  Accounts& accounts = AllAccounts();
  MutexLock lock(accounts.mutex);
  if (accounts.all.size() >= kMaxAccounts) return 0;
  accounts.all.push_back(std::move(account));
  return static_cast<SmallChargesId>(accounts.all.size());
}

namespace internal {

// Moves all that this thread has not moved.
void MoveAll() {
  UnmovedCharges& unmoved = unmoved_charges;
  const int64_t bytes = std::exchange(unmoved.bytes, 0);
  if (unmoved.id == 0 || bytes == 0) return;
  if (bytes > 0) return AccountOf(unmoved.id).Add(static_cast<size_t>(bytes));
  AccountOf(unmoved.id).Credit(static_cast<size_t>(-bytes));
}

absl::Status ChargeSlowly(SmallChargesId id, int64_t bytes) {
  SwitchTo(id);
  UnmovedCharges& unmoved = unmoved_charges;
  const int64_t sum = unmoved.bytes + bytes;
  if (sum >= static_cast<int64_t>(kSmallChargeStep)) {
    const auto step = static_cast<size_t>(sum);
    const bool modest = unmoved.task_bytes + step <= kModestBytes;
    if (absl::Status taken = AccountOf(id).Take(step, modest); !taken.ok()) return taken;
    unmoved.task_bytes += step;
  }
  unmoved.bytes = sum >= static_cast<int64_t>(kSmallChargeStep) ? 0 : sum;
  return absl::OkStatus();
}

void CreditSlowly(SmallChargesId id, int64_t bytes) {
  SwitchTo(id);
  UnmovedCharges& unmoved = unmoved_charges;
  unmoved.bytes -= bytes;
  if (unmoved.bytes > -static_cast<int64_t>(kSmallChargeStep)) return;
  AccountOf(id).Credit(static_cast<size_t>(-std::exchange(unmoved.bytes, 0)));
}

}  // namespace internal
}  // namespace psd
