#pragma once

// The streams of an emulated device, and the launcher of its kernels.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/stream.h"
#include "core/device/emulated/device_array.h"
#include "core/device/stream_pool.h"

namespace psd {

class EmulatedDevice;

// A stream of an EmulatedDevice, which makes and owns it. It also launches kernels. Thread-safe.
class EmulatedStream : public Stream {
 public:
  // `number` is that of the scheduler.
  EmulatedStream(EmulatedDevice& device, uint32_t number, std::string name);

  Device& device() const override;
  absl::StatusOr<std::shared_ptr<Event>> Record() override;
  absl::Status WaitFor(const std::shared_ptr<Event>& event) override;
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override;
  absl::Status AlsoUses(const Block& block) override;
  absl::Status WaitForUsers(const Block& block) override;
  absl::Status CopyIn(std::byte* to, const std::byte* pinned, size_t bytes) override;
  absl::Status CopyOut(std::byte* pinned, const std::byte* from, size_t bytes) override;
  absl::Status CopyFrom(std::byte* to, Device& from_device, const std::byte* from,
                        size_t bytes) override;

  // Adds an operation called `kernel` that calls body(i, arguments...) for each i below `count`, in
  // an order that the body may not rely on. Arguments are taken by value; see VisitArrays in
  // core/device/emulated/device_array.h. Errors: those of Stream; INVALID_ARGUMENT for an array
  // that is not in the device's memory or not aligned to its elements; INTERNAL if a fault was
  // asked for.
  template <typename Body, typename... Arguments>
  absl::Status Launch(absl::string_view kernel, size_t count, Body body, Arguments... arguments) {
    static_assert(std::is_empty_v<Body>, "a kernel gets arguments and captures nothing");
    absl::Status status;
    auto check = [&](auto& array) { status.Update(CheckArray(kernel, array)); };
    (emulated::VisitArrays(arguments, check), ...);
    if (!status.ok()) return status;
    return AddKernel(kernel, [this, count, body, backwards = Backwards(),
                              all = std::make_tuple(std::move(arguments)...)]() mutable {
      auto translate = [this](auto& array) { this->Translate(array); };
      std::apply(
          [&](auto&... each) {
            (emulated::VisitArrays(each, translate), ...);
            for (size_t i = 0; i < count; ++i)
              body(backwards ? count - 1 - i : i, std::as_const(each)...);
          },
          all);
    });
  }

 private:
  friend class EmulatedDevice;

  // Makes later work wait until the work of `other` is done that it has now.
  void WaitForWorkOf(EmulatedStream& other);
  // Adds an operation when the queue has room for it.
  StreamPoint AddToQueue(absl::AnyInvocable<void()> run, std::vector<StreamPoint> after = {});
  // Record, but also on a lost device.
  std::shared_ptr<Event> Mark();
  // Adds an operation that takes part in faults and is not done on a lost device.
  absl::Status Add(absl::string_view operation, absl::AnyInvocable<void()> run);
  absl::Status AddCopy(absl::string_view operation, absl::AnyInvocable<void()> run);
  absl::Status AddKernel(absl::string_view kernel, absl::AnyInvocable<void()> run);
  absl::Status CheckAddress(absl::string_view operation, const void* address, size_t bytes) const;
  // Errors: INVALID_ARGUMENT. A GPU would fail when the kernel runs.
  absl::Status CheckAlignment(absl::string_view operation, const void* address,
                              size_t alignment) const;
  absl::Status CheckPinned(absl::string_view operation, const std::byte* address,
                           size_t bytes) const;
  // Ends the process if the pinned bytes do not live any more.
  void CheckStillPinned(const std::byte* address, size_t bytes) const;
  // Copies and waits. The host's bytes may lie in any memory.
  absl::Status CopyInAndWait(std::byte* to, const std::byte* from, size_t bytes);
  absl::Status CopyOutAndWait(std::byte* to, const std::byte* from, size_t bytes);
  // Waits for all work that has been added. Errors: those of Event::Wait.
  absl::Status WaitForAll();
  bool Backwards() const;
  std::byte* Inside(const void* address) const;
  template <typename T>
  absl::Status CheckArray(absl::string_view kernel, const DeviceArray<T>& array) const {
    if (array.size() == 0) return absl::OkStatus();
    absl::Status status = CheckAddress(kernel, array.data(), array.size() * sizeof(T));
    status.Update(CheckAlignment(kernel, array.data(), alignof(T)));
    return status;
  }
  template <typename T>
  void Translate(DeviceArray<T>& array) const {
    if (array.size() > 0) array = {reinterpret_cast<T*>(Inside(array.data())), array.size()};
  }

  EmulatedDevice& device_;
  const uint32_t number_;
};

}  // namespace psd
