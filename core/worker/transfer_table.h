#pragma once

// Values on their way in or out of an owner in pieces.

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
#include "core/tensor/tensor.h"

namespace psd::worker {

// The arrays of one value and its state: copies that a peer fetches piece by piece, or memory that
// it fills. Contiguous all of them.
class Transfer {
 public:
  explicit Transfer(std::vector<Tensor> arrays) : arrays_(std::move(arrays)) {}

  const std::vector<Tensor>& arrays() const { return arrays_; }
  // Bytes of one array, shared. Errors: INVALID_ARGUMENT when it has them not.
  absl::StatusOr<Buffer> Piece(uint64_t array, uint64_t first_byte, uint64_t bytes) const;
  // Requires: nobody reads the arrays yet. Errors: as above.
  absl::Status Fill(uint64_t array, uint64_t first_byte, const Buffer& bytes);

 private:
  absl::Status CheckRange(uint64_t array, uint64_t first_byte, uint64_t bytes) const;

  std::vector<Tensor> arrays_;
};

// Transfers of the sessions of peers. Thread-safe.
class TransferTable {
 public:
  // A bound to what a peer can make an owner hold: saves and loads that a worker has under way at
  // the same time have one each.
  static constexpr size_t kPerSession = 4;

  // In place of an earlier one of this id. Errors: RESOURCE_EXHAUSTED when the session has
  // kPerSession others.
  absl::Status Put(GlobalId session, GlobalId id, std::shared_ptr<Transfer> transfer)
      PSD_EXCLUDES(mutex_);
  // Errors: NOT_FOUND.
  absl::StatusOr<std::shared_ptr<Transfer>> Find(GlobalId session, GlobalId id) const
      PSD_EXCLUDES(mutex_);
  // Out of the table, for whoever uses up what was filled.
  // Errors: NOT_FOUND; FAILED_PRECONDITION while it is still being filled: it stays then.
  absl::StatusOr<std::shared_ptr<Transfer>> Take(GlobalId session, GlobalId id)
      PSD_EXCLUDES(mutex_);
  // What is not there is no error.
  void Release(GlobalId session, GlobalId id) PSD_EXCLUDES(mutex_);
  void OnSessionEnded(GlobalId session) PSD_EXCLUDES(mutex_);

 private:
  using OfSession = std::map<GlobalId, std::shared_ptr<Transfer>>;  // by id

  mutable Mutex mutex_;                                             // leaf: memory is freed outside
  std::map<GlobalId, OfSession> transfers_ PSD_GUARDED_BY(mutex_);  // by session; none is empty
};

}  // namespace psd::worker
