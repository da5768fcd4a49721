#pragma once

// Values that are transferred into an owner or out of it in pieces.

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/store/value.h"
#include "core/tensor/tensor.h"

namespace psd::services {

// The arrays of one value and its state, each of them contiguous.
class Transfer {
 public:
  enum class Direction {
    kOut,  // a peer fetches the arrays piece by piece; they may be shared with the value itself
    kIn,   // the arrays are new memory, which a peer fills
  };
  Transfer(Direction direction, std::vector<Tensor> arrays)
      : direction_(direction), arrays_(std::move(arrays)) {}

  Direction direction() const { return direction_; }
  const std::vector<Tensor>& arrays() const { return arrays_; }
  // Returns a part of one array, without copying. Errors: INVALID_ARGUMENT if it is outside of the
  // array.
  absl::StatusOr<Buffer> Piece(uint64_t array, uint64_t first_byte, uint64_t bytes) const;
  // Copies `bytes` into one array. Requires: nobody reads the arrays yet. Errors: as above;
  // FAILED_PRECONDITION if the transfer is an outgoing one.
  absl::Status Fill(uint64_t array, uint64_t first_byte, const Buffer& bytes);

 private:
  absl::Status CheckRange(uint64_t array, uint64_t first_byte, uint64_t bytes) const;

  const Direction direction_;
  std::vector<Tensor> arrays_;
};

// The transfers of all peers, by session. Thread-safe.
class TransferTable {
 public:
  // The most transfers of one session. It bounds the memory that a peer can make an owner hold.
  // Each save or load that a worker has under way needs one.
  static constexpr size_t kPerSession = 4;

  // Adds a transfer, in place of an earlier one with this id. Errors: RESOURCE_EXHAUSTED if the
  // session has kPerSession others.
  absl::Status Put(GlobalId session, GlobalId id, std::shared_ptr<Transfer> transfer)
      PSD_EXCLUDES(mutex_);
  // Errors: NOT_FOUND.
  absl::StatusOr<std::shared_ptr<Transfer>> Find(GlobalId session, GlobalId id) const
      PSD_EXCLUDES(mutex_);
  // Removes a transfer that was filled, and returns it to the code that will use its arrays up.
  // Errors: NOT_FOUND; FAILED_PRECONDITION while the transfer is still being filled, or if it is an
  // outgoing one; the transfer then stays.
  absl::StatusOr<std::shared_ptr<Transfer>> Take(GlobalId session, GlobalId id)
      PSD_EXCLUDES(mutex_);
  // Removes a transfer, if there is one.
  void Release(GlobalId session, GlobalId id) PSD_EXCLUDES(mutex_);
  void OnSessionEnded(GlobalId session) PSD_EXCLUDES(mutex_);

 private:
  using OfSession = std::map<GlobalId, std::shared_ptr<Transfer>>;  // by id

  mutable Mutex mutex_;  // leaf; memory is freed outside
  // By session; no element is empty.
  std::map<GlobalId, OfSession> transfers_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::services
