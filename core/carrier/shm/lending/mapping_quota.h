#pragma once

// Bounds the memory of other processes that this process maps.

#include <atomic>
#include <cstddef>

namespace psd::carrier {

// Counts mappings and their bytes. The memory belongs to its makers, but each mapping takes one of
// the mappings that the system allows a process (vm.max_map_count), address space, and page tables,
// which are up to 1/512 of it. Thread-safe.
class MappingQuota {
 public:
  MappingQuota(size_t max_mappings, size_t max_bytes)
      : max_mappings_(max_mappings), max_bytes_(max_bytes) {}

  // Returns false, and takes nothing, if there is no room.
  bool Take(size_t bytes) {
    if (bytes > max_bytes_) return false;
    const bool place = mappings_.fetch_add(1) < max_mappings_;
    const bool room = bytes_.fetch_add(bytes) <= max_bytes_ - bytes;
    if (!place || !room) Give(bytes);
    return place && room;
  }
  // Requires: Take(bytes) returned true.
  void Give(size_t bytes) {
    mappings_.fetch_sub(1);
    bytes_.fetch_sub(bytes);
  }

  size_t mappings() const { return mappings_.load(); }
  size_t bytes() const { return bytes_.load(); }

 private:
  const size_t max_mappings_;
  const size_t max_bytes_;
  std::atomic<size_t> mappings_{0};
  std::atomic<size_t> bytes_{0};
};

}  // namespace psd::carrier
