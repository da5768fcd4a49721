#include "core/device/emulated/pinned_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/device/device_errors.h"
#include "core/device/emulated/quiet_lock.h"

namespace psd::emulated {

class PinnedMemory::PinnedBlock : public Block {
 public:
  PinnedBlock(std::shared_ptr<Block> block, size_t size, QuietPtr<State> state)
      : Block(block->data(), size), block_(std::move(block)), state_(std::move(state)) {}
  ~PinnedBlock() override {
    const Quiet quiet;  // the allocator of the heap memory has locks of its own
    {
      QuietLock lock(state_->mutex);
      state_->used_bytes -= size();
      state_->blocks.erase(data());
    }
    block_.reset();
  }

 private:
  std::shared_ptr<Block> block_;  // the heap memory, which belongs to this block alone
  const QuietPtr<State> state_;   // shared by the allocator and its blocks
};

PinnedMemory::PinnedMemory(std::string what, size_t budget_bytes)
    : state_(std::shared_ptr<State>(new State{std::move(what), budget_bytes, {}})) {}

absl::StatusOr<std::shared_ptr<Block>> PinnedMemory::Allocate(size_t bytes) {
  {
    QuietLock lock(state_->mutex);
    if (bytes > state_->budget_bytes - state_->used_bytes)
      return NoMemory(state_->what, bytes, state_->budget_bytes, state_->used_bytes);
    state_->used_bytes += bytes;
    state_->peak_bytes = std::max(state_->peak_bytes, state_->used_bytes);
  }
  const Quiet quiet;  // the allocator of the heap memory has locks of its own
  // Every block has a byte, so that it has an address of its own.
  absl::StatusOr<std::shared_ptr<Block>> heap = heap_->Allocate(bytes == 0 ? 1 : bytes);
  QuietLock lock(state_->mutex);
  if (!heap.ok()) {
    state_->used_bytes -= bytes;
    return heap.status();
  }
  state_->blocks.emplace((*heap)->data(), bytes);
  return std::make_shared<PinnedBlock>(*std::move(heap), bytes, state_);
}

size_t PinnedMemory::peak_bytes() const {
  QuietLock lock(state_->mutex);
  return state_->peak_bytes;
}

bool PinnedMemory::Contains(const std::byte* address, size_t bytes) const {
  QuietLock lock(state_->mutex);
  const auto behind = state_->blocks.upper_bound(address);
  if (behind == state_->blocks.begin()) return false;
  const auto& [begin, size] = *std::prev(behind);
  const auto before = static_cast<size_t>(address - begin);
  return before <= size && bytes <= size - before;
}

}  // namespace psd::emulated
