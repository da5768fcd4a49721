#include "core/base/small_charges.h"

#include <atomic>
#include <utility>

namespace psd {
namespace {

constexpr size_t kMaxAccounts = 65'535;
// The most that one call may take of the share for small calls.
constexpr size_t kModestBytes = size_t{256} << 10;

// The accounts of the process, by id. They are never destroyed, because ending threads move their
// sums even while the process ends.
std::atomic<const std::shared_ptr<SmallCharges>*> accounts[kMaxAccounts + 1] = {};
std::atomic<size_t> last_account{0};

SmallCharges& AccountOf(SmallChargesId id) {
  return **accounts[id].load(std::memory_order_acquire);
}

// Makes `id` the account of this thread.
void SwitchTo(SmallChargesId id) {
  struct AtThreadEnd {
    ~AtThreadEnd() {
      internal::MoveUnchecked();
      internal::unmoved_charges.id = 0;
    }
  };
  thread_local AtThreadEnd at_end;
  static_cast<void>(at_end);
  if (internal::unmoved_charges.id == id) return;
  internal::MoveUnchecked();
  internal::unmoved_charges.id = id;
  if (internal::unmoved_charges.ask_at == 0)
    internal::unmoved_charges.ask_at = int64_t{kSmallChargeStep};
}

}  // namespace

SmallChargesId KeepSmallCharges(std::shared_ptr<SmallCharges> account) {
  const size_t id = ++last_account;
  if (id > kMaxAccounts) return 0;
  accounts[id].store(new const std::shared_ptr<SmallCharges>(std::move(account)),
                     std::memory_order_release);
  return static_cast<SmallChargesId>(id);
}

void AddSmallPiece(SmallChargesId id, size_t bytes) {
  AccountOf(id).Add(bytes);
}

namespace internal {

void MoveUnchecked() {
  UnmovedCharges& unmoved = unmoved_charges;
  const int64_t bytes = std::exchange(unmoved.bytes, 0);
  if (unmoved.id == 0 || bytes == 0) return;
  if (bytes < 0) return AccountOf(unmoved.id).Credit(static_cast<size_t>(-bytes));
  AccountOf(unmoved.id).Add(static_cast<size_t>(bytes));
  unmoved.unchecked += bytes;
  if (unmoved.unchecked >= int64_t{kSmallChargeStep}) unmoved.ask_at = 1;  // the next piece asks
}

absl::Status ChargeSlowly(SmallChargesId id, int64_t bytes) {
  SwitchTo(id);
  UnmovedCharges& unmoved = unmoved_charges;
  int64_t sum = unmoved.bytes + bytes;
  if (sum >= unmoved.ask_at) {
    const auto step = static_cast<size_t>(sum);
    const bool modest = unmoved.task_bytes + step <= kModestBytes;
    if (absl::Status taken = AccountOf(id).Take(step, modest); !taken.ok()) return taken;
    unmoved.task_bytes += step;
    unmoved.unchecked = 0;
    unmoved.ask_at = int64_t{kSmallChargeStep};
    sum = 0;
  }
  unmoved.bytes = sum;
  return absl::OkStatus();
}

void CreditSlowly(SmallChargesId id, int64_t bytes) {
  // The sum for another account is kept in one piece, because its next piece of memory may come
  // soon.
  if (unmoved_charges.id != 0 && unmoved_charges.id != id)
    return AccountOf(id).Credit(static_cast<size_t>(bytes));
  SwitchTo(id);
  UnmovedCharges& unmoved = unmoved_charges;
  unmoved.bytes -= bytes;
  if (unmoved.bytes > -int64_t{kSmallChargeStep}) return;
  AccountOf(id).Credit(static_cast<size_t>(-std::exchange(unmoved.bytes, 0)));
}

}  // namespace internal
}  // namespace psd
