#include "core/base/aligned_memory.h"

#include <cstdint>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#define PSD_UNDER_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PSD_UNDER_ADDRESS_SANITIZER 1
#endif
#endif

namespace psd {

#ifdef PSD_UNDER_ADDRESS_SANITIZER

// There is no padding here, so that the sanitizer sees the first byte behind a piece.
void* AllocateAligned(size_t bytes) {
  void* address = nullptr;
  return posix_memalign(&address, kMallocAlignment, bytes) == 0 ? address : nullptr;
}

void FreeAligned(void* address) {
  std::free(address);
}

#else

// malloc returns multiples of 16 bytes, so there is room for its address before the aligned one.
static_assert(alignof(std::max_align_t) >= sizeof(void*));

void* AllocateAligned(size_t bytes) {
  if (bytes > SIZE_MAX - kMallocAlignment) return nullptr;
  void* const allocated = std::malloc(bytes + kMallocAlignment);
  if (allocated == nullptr) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(allocated);
  auto* aligned =
      reinterpret_cast<void**>(start / kMallocAlignment * kMallocAlignment + kMallocAlignment);
  aligned[-1] = allocated;
  return aligned;
}

void FreeAligned(void* address) {
  if (address != nullptr) std::free(static_cast<void**>(address)[-1]);
}

#endif

}  // namespace psd
