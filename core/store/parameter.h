#pragma once

// A parameter: a dense tensor that moves through immutable versions.
//
// A step reads the current version and writes the spare buffer, then the spare becomes the current
// version by a pointer flip. A reader pins a version by holding its tensor: it sees it whole while
// later steps go on. The invariants, in terms of buffers of the parameter's size:
//   - current: one, the latest version.
//   - spare: at least one while an optimizer holds the parameter and no step is writing, so that
//     a step never allocates; one more while the current version is pinned, for the step after.
//   - old: versions before the current one that somebody still holds; at most two. A reader that
//     could make it three, or for whom no further spare can be reserved, gets a copy instead.
// When the last holder of an old version lets go, its buffer becomes a spare, or is freed if there
// are spares enough (one more than needed is enough for buffers of up to 16 KiB: see
// kSmallBufferBytes).

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/tensor/flat_tensor.h"
#include "core/tensor/tensor.h"

namespace psd::store {

// What a reader gets: the elements of one version. Holding (or sharing) the tensor pins it.
struct PinnedVersion {
  Tensor tensor;
  uint64_t version = 0;
};

// The same of several parameters.
struct PinnedTogether {
  std::vector<FlatTensor> tensors;
  std::vector<uint64_t> versions;      // of each
  std::shared_ptr<const void> holder;  // pins all: whoever looks at a tensor holds or shares it
};

// What the parameters of one store share, so that versions of many of them flip, and are pinned,
// as one: a lock held for pointer changes only, never during a copy, a kernel or a release of
// memory.
struct VersionLock {
  Mutex mutex;  // leaf: memory is allocated and freed outside
  CondVar spare_returned;
};

// Thread-safe.
class Parameter {
 public:
  // `initial` (floating, contiguous or not) is copied into memory of `allocator`, which is
  // charged for every buffer, and becomes version 1. Parameters that are stepped or pinned
  // together share `versions`.
  // Errors: INVALID_ARGUMENT for other dtypes or devices; RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::shared_ptr<Parameter>> Create(GlobalId id, const Tensor& initial,
                                                           bool requires_grad,
                                                           std::shared_ptr<Allocator> allocator,
                                                           std::shared_ptr<VersionLock> versions);
  virtual ~Parameter() = default;

  virtual GlobalId id() const = 0;
  virtual const Shape& shape() const = 0;
  virtual DType dtype() const = 0;
  virtual bool requires_grad() const = 0;
  virtual uint64_t version() const = 0;

  // The current version, pinned as long as the tensor lives; a copy where the rules above say so.
  // A copy is the reader's own: ordinary process memory, not charged, so that a full budget stops
  // nobody from reading. Errors: RESOURCE_EXHAUSTED when the system has no memory for a copy.
  absl::StatusOr<PinnedVersion> Pin();
  // The current versions of all `parameters` (which share their VersionLock; repeats are fine),
  // as they were at one moment: of every step that wrote several of them, all or nothing is seen.
  static absl::StatusOr<std::vector<PinnedVersion>> PinAll(absl::Span<Parameter* const> parameters);

  // The same for a reader that lets go of all at once. `keeper`, which keeps the parameters, is
  // held as long as the versions are. Cheapest for many.
  static absl::StatusOr<PinnedTogether> PinTogether(absl::Span<Parameter* const> parameters,
                                                    std::shared_ptr<const void> keeper);

  // Keeps `parameters` for readers that may outlive their handles; what nobody reads is freed with
  // those all the same.
  static std::shared_ptr<const void> Keep(absl::Span<Parameter* const> parameters);

  // Reserves the spare for an optimizer (counted: several may hold one parameter).
  // Errors: RESOURCE_EXHAUSTED; nothing reserved then.
  virtual absl::Status AcquireForSteps() = 0;
  virtual void ReleaseFromSteps() = 0;

  // A step's arrays: the current version, which stays current and alive until the writer itself
  // publishes, and the spare to write. Both contiguous and aligned to kBlockAlignment.
  struct Write {
    const std::byte* current = nullptr;
    std::byte* spare = nullptr;
    uint64_t version = 0;  // of `current`
  };
  // Starts a step. Requires: the caller is the only writer of all `parameters` (see WriteClaims),
  // has acquired them, and names none twice; they share their VersionLock. Never allocates; waits
  // only for readers that are just copying an old version out.
  static std::vector<Write> BeginWrite(absl::Span<Parameter* const> parameters);
  // Gives the spares back unpublished. Nothing has changed.
  static void AbandonWrite(absl::Span<Parameter* const> parameters);
  // Makes what was written the current versions of all `parameters`, as one: a reader that pins
  // several through PinAll sees all of them or none. Requires: BeginWrite was called on each.
  static void Publish(absl::Span<Parameter* const> parameters);

  // Replaces the elements as a new version (no optimizer needed; allocates) and returns its
  // number. Requires: the caller is the only writer.
  // Errors: INVALID_ARGUMENT naming both shapes or dtypes; RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<uint64_t> Assign(const Tensor& elements) = 0;

  struct Stats {
    int spares = 0;
    int old_pinned = 0;
    int64_t copies = 0;  // readers that got a copy
    size_t bytes = 0;    // of all its buffers
  };
  virtual Stats stats() const = 0;
};

}  // namespace psd::store
