#pragma once

// Bounds how much freed memory malloc keeps. That memory is not charged to the memory budget, but
// counts toward the memory limit of a container.

#include <cstddef>

#include "absl/time/time.h"

namespace psd::server {

struct HeapSize {
  // Free bytes inside malloc; includes trimmed memory, which has no pages.
  size_t free_bytes = 0;
  size_t resident_bytes = 0;  // of the whole process
};

// Decides when to look how much malloc keeps, which takes milliseconds if the heap has many holes.
// Thread-compatible.
class LookRule {
 public:
  // `used` is the processor time that the process has used so far. Returns true if it has used
  // enough since the last look to have freed much, so an idle process rarely looks.
  bool ShouldLook(absl::Duration used);

 private:
  absl::Duration used_at_last_look_;
};

// Decides when to trim malloc: when more than `worth_bytes` are free and either the free bytes or
// the resident bytes have grown by as much since their lowest point after the last trim. (Free
// memory that was used and freed again since the trim shows only as resident.) Thread-compatible.
class TrimRule {
 public:
  explicit TrimRule(size_t worth_bytes) : worth_bytes_(worth_bytes) {}

  bool ShouldTrim(const HeapSize& now);
  void Trimmed(const HeapSize& after) { least_ = after; }

 private:
  const size_t worth_bytes_;
  HeapSize least_;  // since the last trim
};

// Controls malloc for the whole process. Must be created before the first thread starts.
// Thread-compatible.
class BoundedMalloc {
 public:
  // `kept_bytes` is how much freed memory malloc may keep.
  explicit BoundedMalloc(size_t kept_bytes);

  // Returns the pages of free memory between live blocks to the system, if that is worth it. Looks
  // only if LookRule says so. To be called from time to time: malloc never does so by itself, and
  // the memory of large messages would stay resident.
  void TrimIfWorth();

 private:
  LookRule look_;
  TrimRule trim_;
};

}  // namespace psd::server
