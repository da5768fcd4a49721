#pragma once

// The messages that one end of a link has lent to the other end.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "core/carrier/carrier.h"
#include "core/carrier/shm/lending/quota.h"

namespace psd::carrier {

// A message whose buffers stay unchanged until the reader has returned it.
struct Loan {
  Message message;
  std::vector<uint64_t> segments;  // the ids of those that its buffers lie in
  size_t bytes = 0;                // of these buffers
};

// Which loans are out. Their number is bounded by kMaxLeases, and their bytes by a quota, so that a
// reader that returns nothing makes their owner keep no more. Thread-compatible.
class LeaseBook {
 public:
  explicit LeaseBook(std::shared_ptr<Quota> quota) : quota_(std::move(quota)) {}

  // Takes a place for a loan. Returns the id of its lease, which is never used again, or nullopt if
  // there is no room.
  std::optional<uint64_t> Reserve(size_t bytes);
  // Gives back the place of a loan that is not added. Requires: Reserve(bytes) found room.
  void GiveBack(size_t bytes);
  // The lease is out. Requires: Reserve(loan.bytes) returned `lease`.
  void Add(uint64_t lease, Loan loan);

  // Returns the loan of a lease that ends. Errors: INVALID_ARGUMENT if it is not out.
  absl::StatusOr<Loan> Take(uint64_t lease);
  const Loan* Find(uint64_t lease) const;
  // Ends all leases.
  std::vector<Loan> TakeAll();

  // The bytes of the loans that are out.
  size_t bytes() const { return bytes_; }
  // The loans that are out or have a place.
  size_t loans() const { return places_; }

 private:
  const std::shared_ptr<Quota> quota_;  // shared by the links to one process
  size_t bytes_ = 0;
  size_t places_ = 0;
  uint64_t last_lease_ = 0;
  absl::flat_hash_map<uint64_t, Loan> loans_;  // by lease
};

}  // namespace psd::carrier
