#pragma once

// Host memory for the copies of an emulated device.

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/mutex.h"
#include "core/device/emulated/quiet_ptr.h"

namespace psd::emulated {

// Ordinary memory within a budget, which knows its blocks. Thread-safe.
class PinnedMemory : public Allocator {
 public:
  // `what` names the memory in errors: "pinned memory of emu:0".
  PinnedMemory(std::string what, size_t budget_bytes);

  // Errors: RESOURCE_EXHAUSTED naming the need, the budget and the use.
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override;

  // Whether the bytes lie in one block that lives.
  bool Contains(const std::byte* address, size_t bytes) const;
  // The most bytes that its blocks have had together at any time.
  size_t peak_bytes() const;

 private:
  struct State {
    const std::string what;
    const size_t budget_bytes;
    mutable Mutex mutex;  // leaf
    size_t used_bytes PSD_GUARDED_BY(mutex) = 0;
    size_t peak_bytes PSD_GUARDED_BY(mutex) = 0;
    std::map<const std::byte*, size_t> blocks PSD_GUARDED_BY(mutex) = {};  // sizes by address
  };
  class PinnedBlock;

  const std::shared_ptr<Allocator> heap_ = NewHeapAllocator();
  const QuietPtr<State> state_;  // shared by the blocks
};

}  // namespace psd::emulated
