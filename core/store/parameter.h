#pragma once

// A parameter: a dense tensor that moves through immutable versions.
//
// A step reads the current version and writes the spare buffer; then a pointer flip makes the spare
// the current version. A reader pins a version by holding its tensor, which does not change while
// later steps go on. The invariants, in buffers of the parameter's size:
//   - current: one, the latest version.
//   - spare: at least one while an optimizer holds the parameter and no step is writing, so that
//     a step never allocates; one more while the current version is pinned, for the step after.
//   - old: earlier versions that a reader still holds; at most two. A reader that could cause a
//     third, or for whom no further spare can be reserved, gets a copy instead.
// When the last reader of an old version releases it, its buffer becomes a spare, or is freed if
// there are enough spares. (Buffers of up to 16 KiB keep one spare more than needed; see
// kSmallBufferBytes.) A spare whose segment is retired, because a process that has left may still
// read it, is never written: the next step replaces it.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/base/small_object.h"
#include "core/base/stream.h"
#include "core/store/changing.h"
#include "core/store/version_set.h"
#include "core/tensor/dtype.h"
#include "core/tensor/flat_tensor.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"

namespace psd::store {

// The elements of one version, as a reader gets them. The version is pinned as long as the tensor
// or a copy of its handle exists.
struct PinnedVersion {
  Tensor tensor;
  uint64_t version = 0;
  // Behind the work that has written the elements. The CurrentStream of the thread that has pinned
  // the version waits for it already; other streams do that themselves. Null if there is nothing to
  // wait for.
  std::shared_ptr<Event> written = nullptr;
};

// Versions of several parameters that are pinned together, in memory that the host may read:
// versions on a device have been copied to the host.
struct PinnedTogether {
  std::vector<FlatTensor> tensors;
  std::vector<uint64_t> versions;      // one for each
  std::shared_ptr<const void> holder;  // pins all of them; must be held as long as a tensor is read
};

// The lock that the parameters of one store share, so that many of them can be published or pinned
// at the same moment. It is held for pointer changes only, never during a copy, a kernel or a
// release of memory.
struct VersionLock {
  Mutex mutex;  // leaf: memory is allocated and freed outside
  CondVar spare_returned;
};

class PinPlan;
class VersionPins;

// Whether the elements of a tensor are all of a block, in order.
bool IsWholeBlock(const Tensor& tensor);

// Thread-safe.
class Parameter : public SmallObject, public std::enable_shared_from_this<Parameter> {
 public:
  // Copies `initial`, a floating tensor, into memory of `allocator`; the copy becomes version 1.
  // All buffers come from `allocator`, so the parameter is on its device. Parameters that are
  // stepped or pinned together must share `versions`.
  // Errors: INVALID_ARGUMENT for other dtypes; RESOURCE_EXHAUSTED; those of the devices.
  static absl::StatusOr<std::shared_ptr<Parameter>> Create(GlobalId id, const Tensor& initial,
                                                           bool requires_grad,
                                                           std::shared_ptr<Allocator> allocator,
                                                           std::shared_ptr<VersionLock> versions);
  // As Create, but version 1 is the memory of `fresh`. Requires: IsWholeBlock(fresh), on the device
  // of `allocator`; nobody else has this memory, and nobody uses `fresh` afterwards.
  static absl::StatusOr<std::shared_ptr<Parameter>> Adopt(GlobalId id, const Tensor& fresh,
                                                          bool requires_grad,
                                                          std::shared_ptr<Allocator> allocator,
                                                          std::shared_ptr<VersionLock> versions);
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  GlobalId id() const { return id_; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  bool requires_grad() const { return requires_grad_; }
  // The device that has all versions; null for the host.
  Device* device() const { return device_; }
  // The source of the versions. Arrays that are stepped with the parameter should come from here
  // too, so that they are on its device and charged to the same account.
  Allocator& allocator() const { return *allocator_; }
  uint64_t version() const {
    MutexLock lock(lock_->mutex);
    return set_.version();
  }

  // Returns the current version, which is pinned as long as the tensor exists, or a copy of it if
  // the rules above say so. The tensor is on the parameter's device. There the CurrentStream of the
  // thread is ordered behind the work that writes the version, and declared to use it; another
  // stream that uses the tensor does both itself, before the thread drops the tensor. A copy on the
  // host is ordinary process memory that is not charged to the budget, so a full budget never
  // prevents reading. Errors: RESOURCE_EXHAUSTED if there is no memory for a copy; those of the
  // device.
  absl::StatusOr<PinnedVersion> Pin();
  // Returns the current versions of all `parameters` as they were at one moment: a step that wrote
  // several of them is seen in all or in none. The parameters share their VersionLock; repeats are
  // allowed.
  static absl::StatusOr<std::vector<PinnedVersion>> PinAll(absl::Span<Parameter* const> parameters);

  // As PinAll, for a reader that releases all versions at once; cheaper for many parameters.
  // `keeper`, which must keep the parameters alive (see Keep), is held as long as the versions.
  static absl::StatusOr<PinnedTogether> PinTogether(absl::Span<Parameter* const> parameters,
                                                    std::shared_ptr<const void> keeper);

  // Returns an object that keeps `parameters` valid for readers that may outlive their handles.
  // Buffers that nobody reads are still freed with the handles.
  static std::shared_ptr<const void> Keep(absl::Span<Parameter* const> parameters);

  // Reserves the spare buffer for an optimizer. Calls are counted, because several optimizers may
  // hold one parameter. Errors: RESOURCE_EXHAUSTED; nothing is reserved then.
  absl::Status AcquireForSteps();
  void ReleaseFromSteps();

  // The arrays of a step: the current version, which stays current until the writer publishes, and
  // the spare to write. Both are contiguous and aligned to kBlockAlignment, in the memory of
  // device(). There a step is work of the default stream, which is ordered behind the work that
  // writes the current version and behind that of the spare's last readers.
  struct Write {
    const std::byte* current = nullptr;
    std::byte* spare = nullptr;
    uint64_t version = 0;  // of `current`
  };
  // Starts a step. Requires: the caller is the only writer of all `parameters` (see WriteClaims),
  // has acquired them, and names none twice; they share their VersionLock. Waits only for readers
  // that are just copying an old version out. Allocates only to replace a retired spare, after that
  // one is freed. Errors: RESOURCE_EXHAUSTED, if there is no memory for such a spare; those of the
  // devices. No parameter is being written then, and the step can be tried again.
  static absl::StatusOr<std::vector<Write>> BeginWrite(Changing changing,
                                                       absl::Span<Parameter* const> parameters);
  // Ends a step without publishing: the parameters keep their current versions.
  static void AbandonWrite(Changing, absl::Span<Parameter* const> parameters);
  // Makes the spares the current versions of all `parameters` at one moment: a reader that pins
  // several by PinAll sees all of them or none. `written` is the event behind the work that writes
  // them, on the default stream of their device; null if they are written. Requires: BeginWrite was
  // called on each.
  static void Publish(Changing, absl::Span<Parameter* const> parameters,
                      const std::shared_ptr<Event>& written = nullptr);

  // Makes `elements`, which may be on any device, the new current version and returns its number.
  // Allocates; needs no optimizer. Requires: the caller is the only writer.
  // Errors: INVALID_ARGUMENT naming both shapes or dtypes; RESOURCE_EXHAUSTED; those of the
  // devices.
  absl::StatusOr<uint64_t> Assign(Changing, const Tensor& elements);

  struct Stats {
    int spares = 0;
    int old_pinned = 0;
    int64_t copies = 0;  // readers that got a copy
    size_t bytes = 0;    // of all its buffers
  };
  Stats stats() const;

 private:
  friend class PinPlan;
  friend class VersionPins;

  Parameter(GlobalId id, const Tensor& like, bool requires_grad, VersionBuffer first,
            std::shared_ptr<Allocator> allocator, std::shared_ptr<VersionLock> versions);
  static std::shared_ptr<Parameter> Make(GlobalId id, const Tensor& like, bool requires_grad,
                                         VersionBuffer first, std::shared_ptr<Allocator> allocator,
                                         std::shared_ptr<VersionLock> versions);
  // Called when the handle that Create or Adopt returned is destroyed. Readers may still hold
  // versions.
  void Close();
  // Requires: they share their VersionLock.
  static std::vector<PinPlan> PlansFor(absl::Span<Parameter* const> parameters);
  // Takes all `plans` at one moment into `pins`, which has one element for all plans or one for
  // each.
  static void TakeAll(std::vector<PinPlan>& plans,
                      absl::Span<const std::shared_ptr<VersionPins>> pins);

  absl::StatusOr<VersionBuffer> NewBuffer();
  // Waits for a spare that may be written, or allocates one if none will come back.
  absl::Status ProvideSpare();

  // Every pin and every step reads these two, so they begin the object: they share few cache lines.
  const std::shared_ptr<VersionLock> lock_;  // shared with the parameters of the same store
  VersionSet set_ PSD_GUARDED_BY(lock_->mutex);

  int64_t copies_ PSD_GUARDED_BY(lock_->mutex) = 0;
  const size_t bytes_;    // of each buffer
  Device* const device_;  // null for the host
  const GlobalId id_;
  const Shape shape_;
  const DType dtype_;
  const bool requires_grad_;
  const std::shared_ptr<Allocator> allocator_;  // shared with the store
};

}  // namespace psd::store
