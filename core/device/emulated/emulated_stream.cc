#include "core/device/emulated/emulated_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/base/tsan.h"
#include "core/device/device_errors.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device/emulated/quiet_ptr.h"
#include "core/device/emulated/stream_scheduler.h"
#include "core/device/emulated/visible_copy.h"

namespace psd {
namespace {

using emulated::QuietPtr;
using emulated::StreamScheduler;
using emulated::VisibleCopy;

// How the work before an event has ended. Written before the event passes, and read afterwards.
class Result {
 public:
  void Set(absl::Status status) {
    status_ = std::move(status);
    PSD_TSAN_RELEASE(this);
  }
  absl::Status Get() const {
    PSD_TSAN_ACQUIRE(const_cast<Result*>(this));
    return status_;
  }

 private:
  absl::Status status_;
};

// Operations and completions hold the result and not the event. Otherwise a thread of the scheduler
// could drop the last reference to the scheduler, which waits for its threads.
class EmulatedEvent : public Event {
 public:
  EmulatedEvent(QuietPtr<StreamScheduler> scheduler, StreamPoint point, QuietPtr<Result> result)
      : scheduler_(std::move(scheduler)), point_(point), result_(std::move(result)) {}

  // A thread that asks again and again sees the event pass.
  bool passed() const override {
    if (!scheduler_->passed(point_)) {
      scheduler_->Demand(point_);
      return false;
    }
    static_cast<void>(result_->Get());
    return true;
  }
  absl::Status Wait() override {
    scheduler_->Wait(point_);
    return result_->Get();
  }
  void OnPassed(absl::AnyInvocable<void(absl::Status) &&> then) override {
    scheduler_->OnPassed(point_, [result = result_, then = std::move(then)]() mutable {
      std::move(then)(result->Get());
    });
  }

  const StreamScheduler* scheduler() const { return scheduler_.get(); }
  StreamPoint point() const { return point_; }
  const QuietPtr<Result>& result() const { return result_; }

 private:
  const QuietPtr<StreamScheduler> scheduler_;  // shared by devices and events
  const StreamPoint point_;
  const QuietPtr<Result> result_;  // shared with operations and completions
};

// Returns `other` as an emulated device if `scheduler` runs its streams. Otherwise null.
EmulatedDevice* Related(Device& other, const StreamScheduler& scheduler) {
  auto* const emulated = dynamic_cast<EmulatedDevice*>(&other);
  return emulated != nullptr && &emulated->scheduler() == &scheduler ? emulated : nullptr;
}

}  // namespace

EmulatedStream::EmulatedStream(EmulatedDevice& device, uint32_t number, std::string name)
    : Stream(std::move(name)), device_(device), number_(number) {}

Device& EmulatedStream::device() const {
  return device_;
}

absl::StatusOr<std::shared_ptr<Event>> EmulatedStream::Record() {
  PSD_RETURN_IF_ERROR(device_.AdmitEvent(name()));
  return Mark();
}

std::shared_ptr<Event> EmulatedStream::Mark() {
  QuietPtr<Result> result(std::make_shared<Result>());
  const StreamPoint point =
      AddToQueue([&device = device_, result] { result->Set(device.health()); });
  return std::make_shared<EmulatedEvent>(device_.scheduler_, point, std::move(result));
}

absl::Status EmulatedStream::WaitFor(const std::shared_ptr<Event>& event) {
  const auto* const known = dynamic_cast<const EmulatedEvent*>(event.get());
  if (known == nullptr || known->scheduler() != &device_.scheduler())
    return OtherKindOfEvent(name());
  PSD_RETURN_IF_ERROR(device_.health());
  AddToQueue([result = known->result()] { static_cast<void>(result->Get()); }, {known->point()});
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Block>> EmulatedStream::Allocate(size_t bytes) {
  return device_.Allocate(number_, bytes);
}

absl::Status EmulatedStream::AlsoUses(const Block& block) {
  return device_.AlsoUses(number_, block);
}

absl::Status EmulatedStream::WaitForUsers(const Block& block) {
  PSD_RETURN_IF_ERROR(device_.health());
  return device_.WaitForUsers(*this, block);
}

absl::Status EmulatedStream::CopyIn(std::byte* to, const std::byte* pinned, size_t bytes) {
  if (bytes == 0) return device_.health();
  PSD_RETURN_IF_ERROR(CheckAddress("CopyIn", to, bytes));
  PSD_RETURN_IF_ERROR(CheckPinned("CopyIn", pinned, bytes));
  return AddCopy("CopyIn", [this, to, pinned, bytes] {
    CheckStillPinned(pinned, bytes);
    VisibleCopy(Inside(to), pinned, bytes);
  });
}

absl::Status EmulatedStream::CopyOut(std::byte* pinned, const std::byte* from, size_t bytes) {
  if (bytes == 0) return device_.health();
  PSD_RETURN_IF_ERROR(CheckAddress("CopyOut", from, bytes));
  PSD_RETURN_IF_ERROR(CheckPinned("CopyOut", pinned, bytes));
  return AddCopy("CopyOut", [this, pinned, from, bytes] {
    CheckStillPinned(pinned, bytes);
    VisibleCopy(pinned, Inside(from), bytes);
  });
}

absl::Status EmulatedStream::CopyFrom(std::byte* to, Device& from_device, const std::byte* from,
                                      size_t bytes) {
  EmulatedDevice* const source = Related(from_device, device_.scheduler());
  if (source == nullptr) return NoDirectCopy(name(), from_device);
  PSD_RETURN_IF_ERROR(source->health());
  if (bytes == 0) return device_.health();
  PSD_RETURN_IF_ERROR(CheckAddress("CopyFrom", to, bytes));
  PSD_RETURN_IF_ERROR(source->default_stream().CheckAddress("CopyFrom", from, bytes));
  return AddCopy("CopyFrom", [this, to, source, from, bytes] {
    VisibleCopy(Inside(to), source->default_stream().Inside(from), bytes);
  });
}

absl::Status EmulatedStream::CopyInAndWait(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 0) return device_.health();
  PSD_RETURN_IF_ERROR(CheckAddress("CopyIn", to, bytes));
  PSD_RETURN_IF_ERROR(
      AddCopy("CopyIn", [this, to, from, bytes] { VisibleCopy(Inside(to), from, bytes); }));
  return WaitForAll();
}

absl::Status EmulatedStream::CopyOutAndWait(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 0) return device_.health();
  PSD_RETURN_IF_ERROR(CheckAddress("CopyOut", from, bytes));
  PSD_RETURN_IF_ERROR(
      AddCopy("CopyOut", [this, to, from, bytes] { VisibleCopy(to, Inside(from), bytes); }));
  return WaitForAll();
}

// Waits even if the device is lost: an operation that has begun still uses the host's bytes.
absl::Status EmulatedStream::WaitForAll() {
  return Mark()->Wait();
}

void EmulatedStream::WaitForWorkOf(EmulatedStream& other) {
  QuietPtr<Result> result(std::make_shared<Result>());
  const StreamPoint point = other.AddToQueue([result] { result->Set(absl::OkStatus()); });
  AddToQueue([result] { static_cast<void>(result->Get()); }, {point});
}

StreamPoint EmulatedStream::AddToQueue(absl::AnyInvocable<void()> run,
                                       std::vector<StreamPoint> after) {
  device_.scheduler().WaitForRoom(number_);
  return device_.scheduler().Add(number_, std::move(run), std::move(after));
}

absl::Status EmulatedStream::Add(absl::string_view operation, absl::AnyInvocable<void()> run) {
  std::string described = absl::StrCat(operation, " on ", name());
  PSD_ASSIGN_OR_RETURN(const bool fails, device_.Admit(described));
  AddToQueue([&device = device_, described = std::move(described), fails,
              run = std::move(run)]() mutable { device.Run(described, fails, run); });
  return absl::OkStatus();
}

absl::Status EmulatedStream::AddCopy(absl::string_view operation, absl::AnyInvocable<void()> run) {
  PSD_RETURN_IF_ERROR(Add(operation, std::move(run)));
  device_.CountCopy();
  return absl::OkStatus();
}

absl::Status EmulatedStream::AddKernel(absl::string_view kernel, absl::AnyInvocable<void()> run) {
  PSD_RETURN_IF_ERROR(Add(kernel, std::move(run)));
  device_.CountKernel();
  return absl::OkStatus();
}

absl::Status EmulatedStream::CheckAddress(absl::string_view operation, const void* address,
                                          size_t bytes) const {
  if (device_.Contains(address, bytes)) return absl::OkStatus();
  return NotInMemory(operation, name(), device_.name(), bytes);
}

absl::Status EmulatedStream::CheckAlignment(absl::string_view operation, const void* address,
                                            size_t alignment) const {
  const size_t beyond = reinterpret_cast<uintptr_t>(address) % alignment;
  if (beyond == 0) return absl::OkStatus();
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat(
          operation, " on ", name(), " was given an array that starts ", beyond,
          " bytes behind a multiple of ", alignment, ", to which its elements are aligned")),
      "use narrower elements, or copy them to a block of their own first");
}

absl::Status EmulatedStream::CheckPinned(absl::string_view operation, const std::byte* address,
                                         size_t bytes) const {
  if (device_.pinned_->Contains(address, bytes)) return absl::OkStatus();
  return NotPinned(operation, name(), device_.name(), bytes);
}

void EmulatedStream::CheckStillPinned(const std::byte* address, size_t bytes) const {
  PSD_CHECK(device_.pinned_->Contains(address, bytes),
            absl::StrCat("a pinned block was freed before ", emulated::CurrentOperation()));
}

bool EmulatedStream::Backwards() const {
  return device_.scheduler().Draw() % 2 == 1;
}

std::byte* EmulatedStream::Inside(const void* address) const {
  return device_.Inside(address);
}

}  // namespace psd
