#pragma once

// A parameter: a dense tensor that moves through immutable versions.
//
// A step reads the current version and writes the spare buffer, then the spare becomes the current
// version by a pointer flip. A reader pins a version by holding its tensor: it sees it whole while
// later steps go on. The invariants, in terms of buffers of the parameter's size:
//   - current: one, the latest version.
//   - spare: at least one while an optimizer holds the parameter and no step is writing, so that
//     a step never allocates.
//   - old: versions before the current one that somebody still holds; at most two. A reader that
//     could make it three, or for whom no further spare can be reserved, gets a copy instead.
// When the last holder of an old version lets go, its buffer becomes a spare, or is freed if there
// are spares enough.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/base/ids.h"
#include "core/tensor/tensor.h"

namespace psd::store {

// What a reader gets: the elements of one version. Holding (or sharing) the tensor pins it.
struct PinnedVersion {
  Tensor tensor;
  uint64_t version = 0;
};

// Thread-safe.
class Parameter : public std::enable_shared_from_this<Parameter> {
 public:
  // `initial` (contiguous, floating) becomes version 1; it is copied into memory of `allocator`
  // unless this is its only handle. `allocator` is charged for every buffer.
  // Errors: INVALID_ARGUMENT for other dtypes; RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::shared_ptr<Parameter>> Create(GlobalId id, Tensor initial,
                                                           bool requires_grad,
                                                           std::shared_ptr<Allocator> allocator);
  virtual ~Parameter() = default;

  virtual GlobalId id() const = 0;
  virtual const Shape& shape() const = 0;
  virtual DType dtype() const = 0;
  virtual bool requires_grad() const = 0;
  virtual uint64_t version() const = 0;

  // The current version, pinned as long as the tensor lives; a copy where the rules above say so.
  // Errors: RESOURCE_EXHAUSTED when neither a pin nor a copy fits.
  virtual absl::StatusOr<PinnedVersion> Pin() = 0;

  // Reserves the spare for an optimizer (counted: several may hold one parameter).
  // Errors: RESOURCE_EXHAUSTED; nothing reserved then.
  virtual absl::Status AcquireForSteps() = 0;
  virtual void ReleaseFromSteps() = 0;

  // A step: requires that the caller is the only writer (see WriteClaims) and has acquired it. The
  // current version to read and the spare to write, both contiguous and aligned to kBlockAlignment.
  struct Write {
    PinnedVersion current;
    std::byte* spare = nullptr;
  };
  virtual Write BeginWrite() = 0;
  // Gives the spare back unpublished. Nothing has changed.
  virtual void AbandonWrite() = 0;

  // Makes what was written the current versions of all `parameters`, as one: a reader that pins
  // several through PinAll sees all of them or none. Requires: BeginWrite was called on each.
  static void Publish(absl::Span<Parameter* const> parameters);

  // Replaces the elements as a new version (no optimizer needed; allocates). Requires: the caller
  // is the only writer. Errors: INVALID_ARGUMENT naming both shapes or dtypes; RESOURCE_EXHAUSTED.
  virtual absl::Status Assign(const Tensor& elements) = 0;

  struct Stats {
    int spares = 0;
    int old_pinned = 0;
    int64_t copies = 0;  // readers that got a copy
    size_t bytes = 0;    // of all its buffers
  };
  virtual Stats stats() const = 0;
};

}  // namespace psd::store
