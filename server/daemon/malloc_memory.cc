#include "server/daemon/malloc_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>

namespace psd::server {
namespace {

// Blocks of at least this size are mapped by malloc, which returns them to the system when they are
// freed. It is the most that glibc accepts for M_MMAP_THRESHOLD, so that message buffers, which
// have megabytes, are reused.
constexpr size_t kMaxMapBytes = size_t{32} << 20;
constexpr size_t kMaxKeptBytes = size_t{512} << 20;
constexpr size_t kMostHeaps = 64;
// An idle worker uses about 1 ms each second, so it looks every 20 s. A busy one looks each time it
// is asked.
constexpr absl::Duration kUsedBetweenLooks = absl::Milliseconds(20);

size_t FreeBytes() {
  return mallinfo2().fordblks;
}

// Returns 0 where /proc is hidden.
size_t ResidentBytes() {
  size_t all_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> all_pages >> resident_pages;
  return resident_pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

absl::Duration ProcessorTime() {
  timespec used = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return absl::DurationFromTimespec(used);
}

}  // namespace

bool LookRule::ShouldLook(absl::Duration used) {
  if (used - used_at_last_look_ < kUsedBetweenLooks) return false;
  used_at_last_look_ = used;
  return true;
}

bool TrimRule::ShouldTrim(const HeapSize& now) {
  least_.free_bytes = std::min(least_.free_bytes, now.free_bytes);
  least_.resident_bytes = std::min(least_.resident_bytes, now.resident_bytes);
  return now.free_bytes - least_.free_bytes > worth_bytes_ ||
         (now.free_bytes > worth_bytes_ &&
          now.resident_bytes - least_.resident_bytes > worth_bytes_);
}

BoundedMalloc::BoundedMalloc(size_t kept_bytes) : trim_(kept_bytes) {
  const size_t kept = std::min(kMaxKeptBytes, kept_bytes);
  // There is one heap for every GiB of the budget. Each heap of malloc keeps what its threads have
  // freed until the next trim, and threads of another heap cannot use it.
  mallopt(M_ARENA_MAX, static_cast<int>(std::clamp<size_t>(kept_bytes >> 25, 1, kMostHeaps)));
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(kept));
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(std::min(kMaxMapBytes, kept)));
}

void BoundedMalloc::TrimIfWorth() {
  if (!look_.ShouldLook(ProcessorTime())) return;
  if (!trim_.ShouldTrim({FreeBytes(), ResidentBytes()})) return;
  malloc_trim(0);
  // Other threads use memory meanwhile. What they use is resident now, so it must not count as
  // free, too: once it is freed, neither number would have grown.
  const size_t free_before = FreeBytes();
  const size_t resident = ResidentBytes();
  trim_.Trimmed({std::min(free_before, FreeBytes()), resident});
}

}  // namespace psd::server
