#include "core/base/aligned_mapping.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace psd {

void* MapAligned(size_t length, size_t alignment) {
  const size_t padded = length + alignment - kPageBytes;
  void* raw = mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = (start + alignment - 1) / alignment * alignment;
  if (aligned > start) munmap(raw, aligned - start);
  const size_t tail = start + padded - (aligned + length);
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + length), tail);
  void* address = reinterpret_cast<void*>(aligned);
  // This is a hint: if the system ignores it, only speed is lost.
  if (alignment >= kHugePageBytes) madvise(address, length, MADV_HUGEPAGE);
  return address;
}

size_t MappingLength(size_t bytes) {
  size_t unit = kPageBytes;
  if (bytes >= kHugePageBytes) unit = kHugePageBytes / 8;
  if (bytes >= 8 * kHugePageBytes) unit = kHugePageBytes;
  return (std::max<size_t>(bytes, 1) + unit - 1) / unit * unit;
}

}  // namespace psd
