#include "core/store/parameter.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/store/version_set.h"

namespace psd::store {

class ParameterImpl;

// What keeps one version as it is for its readers. It holds the parameter weakly: readers may
// outlive it, and then just keep the buffer.
class VersionPin {
 public:
  VersionPin(std::weak_ptr<ParameterImpl> parameter, std::shared_ptr<Block> block, uint64_t version)
      : parameter_(std::move(parameter)), block_(std::move(block)), version_(version) {}
  ~VersionPin();
  VersionPin(const VersionPin&) = delete;
  VersionPin& operator=(const VersionPin&) = delete;

  const std::shared_ptr<Block>& block() const { return block_; }
  uint64_t version() const { return version_; }

 private:
  const std::weak_ptr<ParameterImpl> parameter_;
  std::shared_ptr<Block> block_;  // shared with the parameter while it lives
  const uint64_t version_;
};

class ParameterImpl : public Parameter, public std::enable_shared_from_this<ParameterImpl> {
 public:
  ParameterImpl(GlobalId id, const Tensor& initial, bool requires_grad,
                std::shared_ptr<Block> first, std::shared_ptr<Allocator> allocator,
                std::shared_ptr<VersionLock> versions)
      : id_(id),
        shape_(initial.shape()),
        dtype_(initial.dtype()),
        requires_grad_(requires_grad),
        allocator_(std::move(allocator)),
        lock_(std::move(versions)),
        set_(std::move(first)) {}

  GlobalId id() const override { return id_; }
  const Shape& shape() const override { return shape_; }
  DType dtype() const override { return dtype_; }
  bool requires_grad() const override { return requires_grad_; }
  uint64_t version() const override {
    MutexLock lock(lock_->mutex);
    return set_.version();
  }

  absl::Status AcquireForSteps() override;
  void ReleaseFromSteps() override;
  absl::StatusOr<uint64_t> Assign(const Tensor& elements) override;
  Stats stats() const override;

  void DropPin(uint64_t version);
  void DropCopier(uint64_t version);

 private:
  friend class Parameter;
  friend class PinPlan;

  size_t bytes() const { return static_cast<size_t>(shape_.NumElements()) * ItemSize(dtype_); }
  absl::StatusOr<std::shared_ptr<Block>> NewBlock() { return allocator_->Allocate(bytes()); }
  absl::StatusOr<Tensor> AsTensor(std::shared_ptr<const void> owner, const Block& block) const {
    return Tensor::FromBuffer(shape_, dtype_, Buffer(std::move(owner), block.data(), bytes()));
  }

  const GlobalId id_;
  const Shape shape_;
  const DType dtype_;
  const bool requires_grad_;
  const std::shared_ptr<Allocator> allocator_;  // shared with the store
  const std::shared_ptr<VersionLock> lock_;     // shared with the parameters of the same store
  VersionSet set_ PSD_GUARDED_BY(lock_->mutex);
  int64_t copies_ PSD_GUARDED_BY(lock_->mutex) = 0;
};

VersionPin::~VersionPin() {
  std::shared_ptr<ParameterImpl> parameter = parameter_.lock();
  block_.reset();
  if (parameter != nullptr) parameter->DropPin(version_);
}

void ParameterImpl::DropPin(uint64_t version) {
  VersionSet::Blocks freed;
  MutexLock lock(lock_->mutex);
  freed = set_.DropPin(version);
  lock_->spare_returned.NotifyAll();
}

void ParameterImpl::DropCopier(uint64_t version) {
  VersionSet::Blocks freed;
  MutexLock lock(lock_->mutex);
  freed = set_.DropCopier(version);
  lock_->spare_returned.NotifyAll();
}

absl::Status ParameterImpl::AcquireForSteps() {
  std::vector<std::shared_ptr<Block>> reserved;
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
      PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> block, NewBlock());
      reserved.push_back(std::move(block));
    }
  }
}

void ParameterImpl::ReleaseFromSteps() {
  VersionSet::Blocks freed;
  MutexLock lock(lock_->mutex);
  freed = set_.Release();
}

absl::StatusOr<uint64_t> ParameterImpl::Assign(const Tensor& elements) {
  if (!elements.defined() || elements.dtype() != dtype_ || elements.shape() != shape_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a parameter ", DTypeName(dtype_), shape_.ToString(), " cannot take elements ",
                     elements.ToString(), "; give the same shape and dtype"));
  }
  PSD_ASSIGN_OR_RETURN(Tensor dense, elements.Contiguous());
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> block, NewBlock());
  if (bytes() > 0) std::memcpy(block->data(), dense.raw_data(), bytes());
  VersionSet::Blocks freed;
  MutexLock lock(lock_->mutex);
  freed = set_.Replace(std::move(block));
  return set_.version();
}

Parameter::Stats ParameterImpl::stats() const {
  MutexLock lock(lock_->mutex);
  Stats stats;
  stats.spares = set_.spares();
  stats.old_pinned = set_.old_pinned();
  stats.copies = copies_;
  stats.bytes = static_cast<size_t>(set_.buffers()) * bytes();
  return stats;
}

namespace {

ParameterImpl& Impl(Parameter* parameter) {
  return *static_cast<ParameterImpl*>(parameter);
}

}  // namespace

// How one reader comes to the elements of one parameter, in rounds: look under the lock, allocate
// without it, until everything for a batch is there.
class PinPlan {
 public:
  explicit PinPlan(ParameterImpl& parameter) : parameter_(parameter) {}

  // Whether Take can be called. If not, call Reserve without the lock and ask again.
  bool Ready() PSD_REQUIRES(parameter_.lock_->mutex) {
    return reserved_ != nullptr || refused_ ||
           parameter_.set_.AccessForPin() != VersionSet::Access::kReserve;
  }
  void Reserve() {
    absl::StatusOr<std::shared_ptr<Block>> block = parameter_.NewBlock();
    if (block.ok()) reserved_ = *std::move(block);
    refused_ = !block.ok();
  }
  // Pins the current version, or holds it for Finish to copy.
  void Take() PSD_REQUIRES(parameter_.lock_->mutex);
  // The elements; without the lock.
  absl::StatusOr<Tensor> Finish();
  uint64_t version() const { return version_; }

 private:
  ParameterImpl& parameter_;
  std::shared_ptr<Block> reserved_;
  bool refused_ = false;
  std::shared_ptr<VersionPin> pin_;
  std::shared_ptr<Block> source_;  // to copy
  uint64_t version_ = 0;
};

void PinPlan::Take() {
  VersionSet& set = parameter_.set_;
  version_ = set.version();
  pin_ = set.pin.lock();
  if (pin_ != nullptr) return;
  VersionSet::Access access = set.AccessForPin();
  if (access == VersionSet::Access::kReserve && reserved_ != nullptr) {
    set.AddSpare(std::move(reserved_));
    access = VersionSet::Access::kPin;
  }
  if (access == VersionSet::Access::kPin) {
    pin_ = std::make_shared<VersionPin>(parameter_.weak_from_this(), set.current(), version_);
    set.AddPin();
    set.pin = pin_;
  } else {
    source_ = set.current();
    set.AddCopier();
    ++parameter_.copies_;
  }
}

absl::StatusOr<Tensor> PinPlan::Finish() {
  if (pin_ != nullptr) {
    const Block& block = *pin_->block();
    return parameter_.AsTensor(std::move(pin_), block);
  }
  absl::StatusOr<Tensor> copy = parameter_.AsTensor(source_, *source_);
  if (copy.ok()) copy = copy->Clone();
  parameter_.DropCopier(version_);
  return copy;
}

namespace {

VersionLock& SharedLock(const std::shared_ptr<VersionLock>& first,
                        const std::shared_ptr<VersionLock>& each) {
  PSD_CHECK(first == each, "parameters of different stores in one batch");
  return *each;
}

}  // namespace

absl::StatusOr<PinnedVersion> Parameter::Pin() {
  Parameter* self = this;
  PSD_ASSIGN_OR_RETURN(std::vector<PinnedVersion> pinned, PinAll({&self, 1}));
  return std::move(pinned.front());
}

// The analysis cannot see that all parameters of a batch share one lock (which is checked).
absl::StatusOr<std::vector<PinnedVersion>> Parameter::PinAll(
    absl::Span<Parameter* const> parameters) PSD_NO_THREAD_SAFETY_ANALYSIS {
  std::vector<PinnedVersion> results;
  if (parameters.empty()) return results;
  const std::shared_ptr<VersionLock> versions = Impl(parameters[0]).lock_;
  std::vector<PinPlan> plans;
  plans.reserve(parameters.size());
  for (Parameter* parameter : parameters) {
    SharedLock(versions, Impl(parameter).lock_);
    plans.emplace_back(Impl(parameter));
  }
  for (bool taken = false; !taken;) {
    std::vector<PinPlan*> lacking;
    {
      MutexLock lock(versions->mutex);
      for (PinPlan& plan : plans) {
        if (!plan.Ready()) lacking.push_back(&plan);
      }
      if (lacking.empty()) {
        for (PinPlan& plan : plans) plan.Take();
        taken = true;
      }
    }
    for (PinPlan* plan : lacking) plan->Reserve();
  }
  results.reserve(plans.size());
  absl::Status failure;
  for (PinPlan& plan : plans) {
    absl::StatusOr<Tensor> tensor = plan.Finish();  // of every one: copies must be let go
    if (tensor.ok()) results.push_back({*std::move(tensor), plan.version()});
    if (!tensor.ok()) failure.Update(tensor.status());
  }
  if (!failure.ok()) return failure;
  return results;
}

std::vector<Parameter::Write> Parameter::BeginWrite(absl::Span<Parameter* const> parameters)
    PSD_NO_THREAD_SAFETY_ANALYSIS {
  std::vector<Write> writes(parameters.size());
  if (parameters.empty()) return writes;
  VersionLock& versions = *Impl(parameters[0]).lock_;
  MutexLock lock(versions.mutex);
  for (size_t i = 0; i < parameters.size(); ++i) {
    ParameterImpl& parameter = Impl(parameters[i]);
    SharedLock(Impl(parameters[0]).lock_, parameter.lock_);
    VersionSet& set = parameter.set_;
    PSD_CHECK(set.acquired(), "a step on a parameter that its optimizer has not acquired");
    while (!set.CanBeginWrite()) versions.spare_returned.Wait(versions.mutex);
    writes[i].spare = set.BeginWrite()->data();
    writes[i].current = set.current()->data();
    writes[i].version = set.version();
  }
  return writes;
}

void Parameter::AbandonWrite(absl::Span<Parameter* const> parameters)
    PSD_NO_THREAD_SAFETY_ANALYSIS {
  if (parameters.empty()) return;
  VersionSet::Blocks freed;
  MutexLock lock(Impl(parameters[0]).lock_->mutex);
  for (Parameter* parameter : parameters) Impl(parameter).set_.AbandonWrite();
}

void Parameter::Publish(absl::Span<Parameter* const> parameters) PSD_NO_THREAD_SAFETY_ANALYSIS {
  if (parameters.empty()) return;
  std::vector<VersionSet::Blocks> freed;
  MutexLock lock(Impl(parameters[0]).lock_->mutex);
  for (Parameter* parameter : parameters) {
    VersionSet::Blocks blocks = Impl(parameter).set_.Publish();
    if (!blocks.empty()) freed.push_back(std::move(blocks));
  }
}

absl::StatusOr<std::shared_ptr<Parameter>> Parameter::Create(
    GlobalId id, const Tensor& initial, bool requires_grad, std::shared_ptr<Allocator> allocator,
    std::shared_ptr<VersionLock> versions) {
  if (!initial.defined() || !initial.device().IsCpu() || !IsFloating(initial.dtype())) {
    return absl::InvalidArgumentError(
        absl::StrCat("a parameter must be a floating tensor on the cpu, not ", initial.ToString()));
  }
  PSD_ASSIGN_OR_RETURN(Tensor dense, initial.Contiguous());
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> first, allocator->Allocate(dense.NumBytes()));
  if (dense.NumBytes() > 0) std::memcpy(first->data(), dense.raw_data(), dense.NumBytes());
  return std::shared_ptr<Parameter>(std::make_shared<ParameterImpl>(
      id, dense, requires_grad, std::move(first), std::move(allocator), std::move(versions)));
}

}  // namespace psd::store
