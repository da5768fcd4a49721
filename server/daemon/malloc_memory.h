#pragma once

// Bounds how much freed memory malloc keeps. That memory is not charged to the memory budget, but
// counts toward the memory limit of a container.

#include <cstddef>

namespace psd::server {

// Decides when to trim malloc: when `worth_bytes` more are free than at the lowest point since the
// last trim. (Trimmed memory still counts as free; it has only lost its pages.) Thread-compatible.
class TrimRule {
 public:
  explicit TrimRule(size_t worth_bytes) : worth_bytes_(worth_bytes) {}

  bool ShouldTrim(size_t free_bytes);

 private:
  const size_t worth_bytes_;
  size_t least_free_bytes_ = 0;  // since the last trim
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
  const size_t worth_bytes_;
  // Of this process after the last trim. Free memory that was used and freed again since then shows
  // only here.
  size_t resident_after_ = 0;
};

}  // namespace psd::server
