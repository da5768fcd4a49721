#include "server/daemon/malloc_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace psd::server {
namespace {

// The size from which malloc maps blocks, which it returns to the system when they are freed. It is
// the most that glibc accepts for M_MMAP_THRESHOLD, so that message buffers, which have megabytes,
// are reused.
constexpr size_t kMaxMapBytes = size_t{32} << 20;
constexpr size_t kMaxKeptBytes = size_t{512} << 20;
constexpr size_t kMostHeaps = 64;

// Returns 0 where /proc is hidden.
size_t ResidentBytes() {
  size_t all_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> all_pages >> resident_pages;
  return resident_pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

bool TrimRule::ShouldTrim(size_t free_bytes) {
  least_free_bytes_ = std::min(least_free_bytes_, free_bytes);
  if (free_bytes - least_free_bytes_ <= worth_bytes_) return false;
  least_free_bytes_ = free_bytes;
  return true;
}

BoundedMalloc::BoundedMalloc(size_t kept_bytes) : rule_(kept_bytes), worth_bytes_(kept_bytes) {
  const size_t kept = std::min(kMaxKeptBytes, kept_bytes);
  // Each heap of malloc keeps what its threads have freed until the next trim, and threads of
  // another heap cannot use it. One for every GiB of the budget.
  mallopt(M_ARENA_MAX, static_cast<int>(std::clamp<size_t>(kept_bytes >> 25, 1, kMostHeaps)));
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(kept));
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(std::min(kMaxMapBytes, kept)));
}

void BoundedMalloc::TrimIfWorth() {
  const size_t free_bytes = mallinfo2().fordblks;
  const bool grown = free_bytes > worth_bytes_ && ResidentBytes() > resident_after_ + worth_bytes_;
  if (!rule_.ShouldTrim(free_bytes) && !grown) return;
  malloc_trim(0);
  resident_after_ = ResidentBytes();
}

}  // namespace psd::server
