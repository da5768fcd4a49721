#include "core/store/parameter.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/base/small_memory.h"
#include "core/base/status.h"
#include "core/store/version_set.h"

namespace psd::store {

namespace {

absl::StatusOr<VersionBuffer> Allocate(Allocator& allocator, size_t bytes) {
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> block, allocator.Allocate(bytes));
  return VersionBuffer(std::move(block));
}

// Returns a buffer of `allocator` that holds the elements of `from`.
absl::StatusOr<VersionBuffer> CopyOf(const Tensor& from, Allocator& allocator) {
  PSD_ASSIGN_OR_RETURN(const Tensor dense, from.Contiguous());
  PSD_ASSIGN_OR_RETURN(VersionBuffer copy, Allocate(allocator, dense.NumBytes()));
  PSD_RETURN_IF_ERROR(CopyBytes(copy.block->place().device(), copy.data, dense.device(),
                                dense.address(), dense.NumBytes()));
  PSD_RETURN_IF_ERROR(AwaitCurrentWork(copy.block->place().device()));
  return copy;
}

// Returns the block of `fresh` as a buffer. Requires: `fresh` is a whole block.
VersionBuffer BlockOf(const Tensor& fresh) {
  auto* const block = const_cast<Block*>(fresh.block());  // nobody else has it
  return VersionBuffer(std::shared_ptr<Block>(fresh.storage(), block));
}

}  // namespace

bool IsWholeBlock(const Tensor& tensor) {
  const Block* const block = tensor.block();
  return block != nullptr && tensor.IsContiguous() && tensor.address() == block->data() &&
         tensor.NumBytes() == block->size();
}

Parameter::Parameter(GlobalId id, const Tensor& like, bool requires_grad, VersionBuffer first,
                     std::shared_ptr<Allocator> allocator, std::shared_ptr<VersionLock> versions)
    : lock_(std::move(versions)),
      set_(std::move(first), like.NumBytes()),
      bytes_(like.NumBytes()),
      device_(set_.current().block->place().device()),
      id_(id),
      shape_(like.shape()),
      dtype_(like.dtype()),
      requires_grad_(requires_grad),
      allocator_(std::move(allocator)) {}

absl::StatusOr<VersionBuffer> Parameter::NewBuffer() {
  return Allocate(*allocator_, bytes_);
}

void Parameter::Close() {
  FreedVersions freed;
  MutexLock lock(lock_->mutex);
  set_.Close(freed);
}

absl::Status Parameter::AcquireForSteps() {
  std::vector<VersionBuffer> reserved;
  while (true) {
    size_t missing = 0;
    {
      MutexLock lock(lock_->mutex);
      missing = static_cast<size_t>(set_.MissingForAcquire());
      if (reserved.size() >= missing) {
        for (size_t i = 0; i < missing; ++i) set_.AddSpare(std::move(reserved[i]));
        set_.Acquire();
        return absl::OkStatus();
      }
    }
    while (reserved.size() < missing) {
      PSD_ASSIGN_OR_RETURN(VersionBuffer buffer, NewBuffer());
      reserved.push_back(std::move(buffer));
    }
  }
}

void Parameter::ReleaseFromSteps() {
  FreedVersions freed;
  MutexLock lock(lock_->mutex);
  set_.Release(freed);
}

absl::StatusOr<uint64_t> Parameter::Assign(Changing, const Tensor& elements) {
  if (!elements.defined() || elements.dtype() != dtype_ || elements.shape() != shape_) {
    return WithRemedy(absl::InvalidArgumentError(
                          absl::StrCat("a parameter ", DTypeName(dtype_), shape_.ToString(),
                                       " cannot take elements ", elements.ToString())),
                      "give the same shape and dtype");
  }
  PSD_ASSIGN_OR_RETURN(VersionBuffer buffer, CopyOf(elements, *allocator_));
  FreedVersions freed;
  MutexLock lock(lock_->mutex);
  set_.Replace(std::move(buffer), freed);
  return set_.version();
}

Parameter::Stats Parameter::stats() const {
  MutexLock lock(lock_->mutex);
  Stats stats;
  stats.spares = set_.spares();
  stats.old_pinned = set_.old_pinned();
  stats.copies = copies_;
  stats.bytes = static_cast<size_t>(set_.buffers()) * bytes_;
  return stats;
}

namespace {

absl::StatusOr<Tensor> AsTensor(const FlatTensor& flat, std::shared_ptr<const void> owner) {
  return Tensor::FromBuffer(*flat.shape, flat.dtype,
                            Buffer(std::move(owner), flat.data, flat.bytes, flat.block));
}

void CheckShared(const std::shared_ptr<VersionLock>& first,
                 const std::shared_ptr<VersionLock>& each) {
  PSD_CHECK(first == each, "parameters of different stores in one batch");
}

}  // namespace

// Pins versions of several parameters until the last handle to this object is destroyed.
class VersionPins {
 public:
  // `keeper` keeps alive the parameters that will be added.
  static std::shared_ptr<VersionPins> Create(VersionLock& lock,
                                             std::shared_ptr<const void> keeper) {
    return std::allocate_shared<VersionPins>(SmallMemoryAllocator<VersionPins>(), lock,
                                             std::move(keeper));
  }
  VersionPins(VersionLock& lock, std::shared_ptr<const void> keeper)
      : lock_(lock), keeper_(std::move(keeper)) {}
  ~VersionPins();
  VersionPins(const VersionPins&) = delete;
  VersionPins& operator=(const VersionPins&) = delete;

  void Reserve(size_t count) { pins_.reserve(count); }
  // Pins the current version. Requires: AccessForPin() is kPin.
  void Add(Parameter& parameter) PSD_REQUIRES(parameter.lock_->mutex) {
    pins_.push_back({&parameter, parameter.set_.version()});
    parameter.set_.AddPin();
  }
  // Keeps a copy of a version that could not be pinned.
  void Keep(Tensor copy) { copies_.push_back(std::move(copy)); }

 private:
  struct Pin {
    Parameter* parameter = nullptr;
    uint64_t version = 0;
  };
  VersionLock& lock_;  // the parameters'
  const std::shared_ptr<const void> keeper_;
  absl::InlinedVector<Pin, 1> pins_;
  std::vector<Tensor> copies_;
};

VersionPins::~VersionPins() PSD_NO_THREAD_SAFETY_ANALYSIS {
  FreedVersions freed;
  MutexLock lock(lock_.mutex);
  for (const Pin& pin : pins_) pin.parameter->set_.DropPin(pin.version, freed);
  lock_.spare_returned.NotifyAll();
}

// The steps by which a reader gets the elements of one parameter. It alternates between checking
// under the lock and allocating without it, until everything that a batch needs is reserved.
class PinPlan {
 public:
  explicit PinPlan(Parameter& parameter) : parameter_(parameter) {}

  // Whether Take can be called. If not, call Reserve without the lock and ask again.
  bool Ready() PSD_REQUIRES(parameter_.lock_->mutex) {
    access_ = parameter_.set_.AccessForPin();
    return access_ != VersionSet::Access::kReserve || reserved_ || refused_;
  }
  void Reserve() {
    absl::StatusOr<VersionBuffer> buffer = parameter_.NewBuffer();
    if (buffer.ok()) reserved_ = *std::move(buffer);
    refused_ = !buffer.ok();
  }
  // Adds the current version to `pins`, or holds it for Copy. Requires: Ready() has been true since
  // the lock was taken.
  void Take(VersionPins& pins) PSD_REQUIRES(parameter_.lock_->mutex);

  bool copies() const { return copies_; }
  // Copies the version and releases it. Called without the lock. Requires: copies().
  absl::StatusOr<Tensor> Copy(Device* to);

  // Orders the CurrentStream of this thread behind the version's work, and declares that it uses
  // the version. Does nothing on the host. Errors: those of the device.
  absl::Status Await() const;
  // The event of the version, or that of the copy after Copy. Null if there is nothing to wait for.
  const std::shared_ptr<Event>& written() const { return written_; }

  // The elements are valid until they are copied, or as long as the pins. They are on the
  // parameter's device.
  Parameter& parameter() const { return parameter_; }
  FlatTensor flat() const {
    return {&parameter_.shape_, data_, parameter_.bytes_, parameter_.dtype_, block_};
  }
  uint64_t version() const { return version_; }

 private:
  // Copies the version to memory of `device`; null for the host.
  absl::Status CopyInto(Device* device, std::byte* to);

  Parameter& parameter_;
  const std::byte* data_ = nullptr;
  const Block* block_ = nullptr;
  std::shared_ptr<Event> written_;
  uint64_t version_ = 0;
  VersionSet::Access access_ = VersionSet::Access::kReserve;
  bool refused_ = false;
  bool copies_ = false;
  VersionBuffer reserved_;
};

void PinPlan::Take(VersionPins& pins) {
  VersionSet& set = parameter_.set_;
  data_ = set.current().data;
  block_ = set.current().block.get();
  if (set.on_device()) written_ = set.written();
  version_ = set.version();
  // Another plan may have pinned the same parameter meanwhile.
  if (access_ != VersionSet::Access::kPin) access_ = set.AccessForPin();
  if (access_ == VersionSet::Access::kReserve && reserved_) {
    set.AddSpare(std::move(reserved_));
    access_ = VersionSet::Access::kPin;
  }
  if (access_ == VersionSet::Access::kPin) return pins.Add(parameter_);
  copies_ = true;
  set.AddCopier();
  ++parameter_.copies_;
}

absl::Status PinPlan::Await() const {
  Device* const device = parameter_.device_;
  if (device == nullptr) return absl::OkStatus();
  PSD_RETURN_IF_ERROR(device->health());
  Stream* const stream = CurrentStream(device);
  if (written_ != nullptr && stream != &device->default_stream())
    PSD_RETURN_IF_ERROR(stream->WaitFor(written_));
  return stream->AlsoUses(*block_);
}

absl::Status PinPlan::CopyInto(Device* device, std::byte* to) {
  PSD_RETURN_IF_ERROR(Await());
  PSD_RETURN_IF_ERROR(CopyBytes(device, to, parameter_.device_, data_, parameter_.bytes_));
  written_ = nullptr;
  if (device == nullptr) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(written_, CurrentStream(device)->Record());
  return absl::OkStatus();
}

absl::StatusOr<Tensor> PinPlan::Copy(Device* to) {
  absl::StatusOr<Tensor> copy =
      Tensor::Empty(parameter_.shape_, parameter_.dtype_, to == nullptr ? nullptr : &to->memory());
  if (copy.ok()) {
    const absl::Status copied = CopyInto(to, copy->mutable_address());
    if (!copied.ok()) copy = copied;
  }
  FreedVersions freed;
  MutexLock lock(parameter_.lock_->mutex);
  parameter_.set_.DropCopier(version_, freed);
  parameter_.lock_->spare_returned.NotifyAll();
  return copy;
}

// Returns a copy on the host of a version that is pinned and on a device.
absl::StatusOr<Tensor> CopyToHost(const PinPlan& plan) {
  const FlatTensor flat = plan.flat();
  PSD_ASSIGN_OR_RETURN(Tensor copy, Tensor::Empty(*flat.shape, flat.dtype));
  PSD_RETURN_IF_ERROR(plan.Await());
  PSD_RETURN_IF_ERROR(CopyBytes(nullptr, copy.mutable_raw_data(), plan.parameter().device(),
                                flat.data, flat.bytes));
  return copy;
}

absl::StatusOr<PinnedVersion> Parameter::Pin() {
  Parameter* self = this;
  PSD_ASSIGN_OR_RETURN(std::vector<PinnedVersion> pinned, PinAll({&self, 1}));
  return std::move(pinned.front());
}

absl::StatusOr<std::vector<PinnedVersion>> Parameter::PinAll(
    absl::Span<Parameter* const> parameters) {
  std::vector<PinPlan> plans = Parameter::PlansFor(parameters);
  std::vector<std::shared_ptr<VersionPins>> pins;  // one for each plan
  pins.reserve(plans.size());
  for (PinPlan& plan : plans) {
    Parameter& parameter = plan.parameter();
    pins.push_back(VersionPins::Create(*parameter.lock_, parameter.shared_from_this()));
  }
  Parameter::TakeAll(plans, pins);
  std::vector<PinnedVersion> results;
  results.reserve(plans.size());
  absl::Status failure;
  for (size_t i = 0; i < plans.size(); ++i) {
    // Goes on after a failure, because Copy also releases the version.
    PinPlan& plan = plans[i];
    if (!plan.copies()) failure.Update(plan.Await());
    absl::StatusOr<Tensor> tensor = plan.copies() ? plan.Copy(plan.parameter().device())
                                                  : AsTensor(plan.flat(), std::move(pins[i]));
    if (tensor.ok()) results.push_back({*std::move(tensor), plan.version(), plan.written()});
    if (!tensor.ok()) failure.Update(tensor.status());
  }
  if (!failure.ok()) return failure;
  return results;
}

std::shared_ptr<const void> Parameter::Keep(absl::Span<Parameter* const> parameters) {
  auto kept = std::make_shared<std::vector<std::shared_ptr<Parameter>>>();
  kept->reserve(parameters.size());
  for (Parameter* parameter : parameters) kept->push_back(parameter->shared_from_this());
  return kept;
}

absl::StatusOr<PinnedTogether> Parameter::PinTogether(absl::Span<Parameter* const> parameters,
                                                      std::shared_ptr<const void> keeper) {
  PinnedTogether pinned;
  if (parameters.empty()) return pinned;
  std::vector<PinPlan> plans = Parameter::PlansFor(parameters);
  const auto pins = VersionPins::Create(*parameters[0]->lock_, std::move(keeper));
  pins->Reserve(plans.size());
  Parameter::TakeAll(plans, {&pins, 1});
  pinned.tensors.reserve(plans.size());
  pinned.versions.reserve(plans.size());
  absl::Status failure;
  for (PinPlan& plan : plans) {
    pinned.versions.push_back(plan.version());
    pinned.tensors.push_back(plan.flat());
    if (!plan.copies() && plan.parameter().device_ == nullptr) continue;
    // Goes on after a failure, because Copy also releases the version.
    absl::StatusOr<Tensor> copy = plan.copies() ? plan.Copy(nullptr) : CopyToHost(plan);
    if (!copy.ok()) {
      failure.Update(copy.status());
      continue;
    }
    pinned.tensors.back().data = copy->raw_data();
    pinned.tensors.back().block = copy->block();
    pins->Keep(*std::move(copy));
  }
  if (!failure.ok()) return failure;
  pinned.holder = pins;
  return pinned;
}

std::vector<PinPlan> Parameter::PlansFor(absl::Span<Parameter* const> parameters) {
  std::vector<PinPlan> plans;
  plans.reserve(parameters.size());
  for (Parameter* parameter : parameters) {
    CheckShared(parameters[0]->lock_, parameter->lock_);
    plans.emplace_back(*parameter);
  }
  return plans;
}

// The thread-safety analysis cannot see that all parameters of a batch share one lock. This is
// checked at run time instead.
void Parameter::TakeAll(std::vector<PinPlan>& plans,
                        absl::Span<const std::shared_ptr<VersionPins>> pins)
    PSD_NO_THREAD_SAFETY_ANALYSIS {
  if (plans.empty()) return;
  VersionLock& versions = *plans[0].parameter().lock_;
  while (true) {
    std::vector<PinPlan*> lacking;
    {
      MutexLock lock(versions.mutex);
      for (PinPlan& plan : plans) {
        if (!plan.Ready()) lacking.push_back(&plan);
      }
      if (lacking.empty()) {
        for (size_t i = 0; i < plans.size(); ++i)
          plans[i].Take(*pins[std::min(i, pins.size() - 1)]);
        return;
      }
    }
    for (PinPlan* plan : lacking) plan->Reserve();
  }
}

namespace {

// Orders the stream of a step, which reads one block and writes the other. The version in `current`
// was written by this stream, or before.
struct StepOrder {
  Stream& stream;
  const Block& current;
  const Block& spare;

  absl::Status Await() const {
    PSD_RETURN_IF_ERROR(stream.AlsoUses(current));
    return stream.WaitForUsers(spare);
  }
};

}  // namespace

absl::Status Parameter::ProvideSpare() PSD_NO_THREAD_SAFETY_ANALYSIS {
  while (true) {
    FreedVersions freed;
    {
      MutexLock lock(lock_->mutex);
      set_.DropRetired(freed);
      while (!set_.CanBeginWrite() && set_.AwaitsSpare()) {
        lock_->spare_returned.Wait(lock_->mutex);
        set_.DropRetired(freed);
      }
      if (set_.CanBeginWrite()) return absl::OkStatus();
    }
    freed = {};  // makes room
    PSD_ASSIGN_OR_RETURN(VersionBuffer spare, NewBuffer());
    MutexLock lock(lock_->mutex);
    set_.AddSpare(std::move(spare));
  }
}

absl::StatusOr<std::vector<Parameter::Write>> Parameter::BeginWrite(
    Changing changing, absl::Span<Parameter* const> parameters) PSD_NO_THREAD_SAFETY_ANALYSIS {
  std::vector<Write> writes;
  if (parameters.empty()) return writes;
  writes.reserve(parameters.size());
  std::vector<StepOrder> orders;  // of those on devices
  VersionLock& versions = *parameters[0]->lock_;
  while (true) {
    {
      MutexLock lock(versions.mutex);
      while (writes.size() < parameters.size()) {
        Parameter& parameter = *parameters[writes.size()];
        CheckShared(parameters[0]->lock_, parameter.lock_);
        VersionSet& set = parameter.set_;
        PSD_CHECK(set.acquired(), "a step on a parameter that its optimizer has not acquired");
        if (!set.CanBeginWrite()) break;
        const VersionBuffer& current = set.current();
        const VersionBuffer& spare = set.BeginWrite();
        writes.push_back({current.data, spare.data, set.version()});
        if (set.on_device())
          orders.push_back({parameter.device_->default_stream(), *current.block, *spare.block});
      }
    }
    absl::Status ready;
    if (writes.size() == parameters.size()) {
      for (const StepOrder& order : orders) ready.Update(order.Await());
      if (ready.ok()) return writes;
    } else {
      ready = parameters[writes.size()]->ProvideSpare();
    }
    if (!ready.ok()) {
      AbandonWrite(changing, parameters.first(writes.size()));
      return ready;
    }
  }
}

void Parameter::AbandonWrite(Changing, absl::Span<Parameter* const> parameters)
    PSD_NO_THREAD_SAFETY_ANALYSIS {
  if (parameters.empty()) return;
  MutexLock lock(parameters[0]->lock_->mutex);
  for (Parameter* parameter : parameters) parameter->set_.AbandonWrite();
}

void Parameter::Publish(Changing, absl::Span<Parameter* const> parameters,
                        const std::shared_ptr<Event>& written) PSD_NO_THREAD_SAFETY_ANALYSIS {
  if (parameters.empty()) return;
  FreedVersions freed;
  MutexLock lock(parameters[0]->lock_->mutex);
  for (Parameter* parameter : parameters) parameter->set_.Publish(written, freed);
}

absl::StatusOr<std::shared_ptr<Parameter>> Parameter::Create(
    GlobalId id, const Tensor& initial, bool requires_grad, std::shared_ptr<Allocator> allocator,
    std::shared_ptr<VersionLock> versions) {
  if (!initial.defined() || !IsFloating(initial.dtype())) {
    return absl::InvalidArgumentError(
        absl::StrCat("a parameter must be a floating tensor, not ", initial.ToString()));
  }
  PSD_ASSIGN_OR_RETURN(VersionBuffer first, CopyOf(initial, *allocator));
  return Make(id, initial, requires_grad, std::move(first), std::move(allocator),
              std::move(versions));
}

absl::StatusOr<std::shared_ptr<Parameter>> Parameter::Adopt(GlobalId id, const Tensor& fresh,
                                                            bool requires_grad,
                                                            std::shared_ptr<Allocator> allocator,
                                                            std::shared_ptr<VersionLock> versions) {
  PSD_CHECK(IsFloating(fresh.dtype()) && IsWholeBlock(fresh), "a tensor that is not a block");
  PSD_RETURN_IF_ERROR(AwaitCurrentWork(fresh.device()));
  return Make(id, fresh, requires_grad, BlockOf(fresh), std::move(allocator), std::move(versions));
}

std::shared_ptr<Parameter> Parameter::Make(GlobalId id, const Tensor& like, bool requires_grad,
                                           VersionBuffer first,
                                           std::shared_ptr<Allocator> allocator,
                                           std::shared_ptr<VersionLock> versions) {
  std::shared_ptr<Parameter> parameter(new Parameter(id, like, requires_grad, std::move(first),
                                                     std::move(allocator), std::move(versions)));
  // Readers' pins also share the object, but only this handle keeps it open.
  Parameter* handle = parameter.get();
  return std::shared_ptr<Parameter>(
      handle, [parameter = std::move(parameter)](Parameter*) { parameter->Close(); });
}

}  // namespace psd::store
