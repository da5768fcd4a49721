#pragma once

// Charges small pieces of memory to an account. A locked instruction for each piece would cost more
// than the piece. So each thread adds up what it takes and gives back, and moves the sum to the
// account in steps; the account is off by at most a step for each thread, and a thread exceeds its
// limit by at most two steps.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/optimization.h"
#include "absl/status/status.h"

namespace psd {

inline constexpr size_t kSmallChargeStep = size_t{64} << 10;

// An account that threads move their sums to. Thread-safe.
class SmallCharges {
 public:
  virtual ~SmallCharges() = default;
  // Charges `bytes`. `modest` says that the work on this thread has taken little so far, so it may
  // use the memory reserved for small calls. Errors: RESOURCE_EXHAUSTED.
  virtual absl::Status Take(size_t bytes, bool modest) = 0;
  // Charges memory that is in use already, whatever the limit.
  virtual void Add(size_t bytes) = 0;
  virtual void Credit(size_t bytes) = 0;
};

// Names an account to which pieces are charged. 0 means that pieces are not charged.
using SmallChargesId = uint32_t;

// Returns the id of an account, which is kept until the process ends because its pieces may be. A
// process has at most 65,535; further ones get 0.
SmallChargesId KeepSmallCharges(std::shared_ptr<SmallCharges> account);

namespace internal {

// The charges that a thread has not yet moved to the account `id`. Plain data, like FreeLists of
// small memory.
struct UnmovedCharges {
  SmallChargesId id;
  int64_t bytes;      // negative: more was given back than taken
  int64_t ask_at;     // at this sum the account is asked whether it has room; 0: not set yet
  int64_t unchecked;  // moved without asking since the account was last asked
  size_t task_bytes;  // moved since the task began
};
inline thread_local UnmovedCharges unmoved_charges = {};

absl::Status ChargeSlowly(SmallChargesId id, int64_t bytes);
void CreditSlowly(SmallChargesId id, int64_t bytes);
void MoveUnchecked();

}  // namespace internal

// Requires: `id` is not 0. Errors: RESOURCE_EXHAUSTED from the account; nothing is charged then.
inline absl::Status ChargeSmallPiece(SmallChargesId id, size_t bytes) {
  internal::UnmovedCharges& unmoved = internal::unmoved_charges;
  const int64_t sum = unmoved.bytes + static_cast<int64_t>(bytes);
  if (ABSL_PREDICT_FALSE(unmoved.id != id || sum >= unmoved.ask_at))
    return internal::ChargeSlowly(id, static_cast<int64_t>(bytes));
  unmoved.bytes = sum;
  return absl::OkStatus();
}
inline void CreditSmallPiece(SmallChargesId id, size_t bytes) {
  internal::UnmovedCharges& unmoved = internal::unmoved_charges;
  const int64_t sum = unmoved.bytes - static_cast<int64_t>(bytes);
  if (ABSL_PREDICT_FALSE(unmoved.id != id || sum <= -static_cast<int64_t>(kSmallChargeStep)))
    return internal::CreditSlowly(id, static_cast<int64_t>(bytes));
  unmoved.bytes = sum;
}

// Charges a piece at once and whatever the limit, because room was reserved for it. The piece is
// credited like any other. Requires: `id` is not 0.
void AddSmallPiece(SmallChargesId id, size_t bytes);

// To be called when the work of a peer's call begins on this thread; the work has taken nothing
// yet.
inline void BeginSmallCharges() {
  internal::unmoved_charges.task_bytes = 0;
}

// To be called when the work has ended. Moves all but a small sum, because the thread may now sleep
// for long.
inline void EndSmallCharges() {
  constexpr int64_t kLeft = int64_t{4} << 10;
  const int64_t bytes = internal::unmoved_charges.bytes;
  if (ABSL_PREDICT_FALSE(bytes > kLeft || bytes < -kLeft)) internal::MoveUnchecked();
}

}  // namespace psd
