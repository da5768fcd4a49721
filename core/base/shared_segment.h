#pragma once

// Memory of this process that other processes of the host may map for reading.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/memory_place.h"
#include "core/base/mutex.h"
#include "core/base/sealed_memory.h"

namespace psd {

// Hears that a segment is gone. The segment's last reference may go on any thread, which may hold
// any lock: Gone must neither lock nor block.
class SegmentWatcher {
 public:
  virtual ~SegmentWatcher() = default;
  virtual void Gone(uint64_t segment) = 0;
};

// A piece of sealed memory (sealed_memory.h) with an id. This process keeps the only writable
// mapping. Blocks of the segment, and those who have shown it to other processes, share ownership.
// Thread-safe.
class SharedSegment : public std::enable_shared_from_this<SharedSegment> {
 public:
  // Returns a segment of MappingLength(bytes) zeroed bytes (aligned_mapping.h). A process has at
  // most MostSegments(). Errors: RESOURCE_EXHAUSTED naming the size, the system call and the limit
  // that is reached; UNIMPLEMENTED if the system cannot seal memory.
  static absl::StatusOr<std::shared_ptr<SharedSegment>> Create(size_t bytes);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // A quarter of the descriptors that this process may have (RLIMIT_NOFILE), and at most 16,384,
  // because a process may have 65,530 mappings unless vm.max_map_count says otherwise.
  static size_t MostSegments();

  // Never 0, and never used again in this process.
  uint64_t id() const { return id_; }
  // The descriptor that other processes map (MapSealedMemory). It is open as long as the segment
  // exists.
  int fd() const { return memory_.fd.get(); }
  std::byte* data() const { return memory_.mapping.data(); }
  size_t bytes() const { return memory_.mapping.size(); }  // whole pages
  // The place of the segment's blocks.
  const MemoryPlace& place() const { return place_; }

  // From now on the memory is not used again after its block is freed: a process that was shown the
  // segment, and cannot say any more that it has finished, may still read it.
  void Retire() { retired_.store(true, std::memory_order_release); }
  bool retired() const { return retired_.load(std::memory_order_acquire); }

  // `watcher` hears when the segment is gone, if it still exists then.
  void Watch(std::weak_ptr<SegmentWatcher> watcher) PSD_EXCLUDES(mutex_);

 private:
  explicit SharedSegment(SealedMemory memory);

  const uint64_t id_;
  const SealedMemory memory_;
  const MemoryPlace place_;
  std::atomic<bool> retired_{false};
  Mutex mutex_;  // leaf
  std::vector<std::weak_ptr<SegmentWatcher>> watchers_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd
