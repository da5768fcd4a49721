#pragma once

// Bounds how much freed memory malloc keeps. That memory is not charged to the memory budget, but
// counts toward the memory limit of a container.

#include <cstddef>

namespace psd::server {

struct HeapSize {
  size_t free_bytes = 0;      // that malloc could hand out; trimmed memory counts, without pages
  size_t resident_bytes = 0;  // of the whole process
};

// Decides when to trim malloc: when `worth_bytes` more are free than at the lowest point since the
// last trim, or resident while that many are free. (Free memory that was used and freed again since
// the trim shows only as resident.) Thread-compatible.
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

  // Returns the pages of free memory between live blocks to the system, if that is worth it. To be
  // called from time to time: malloc never does so by itself, and the memory of large messages
  // would stay resident.
  void TrimIfWorth();

 private:
  TrimRule rule_;
};

}  // namespace psd::server
