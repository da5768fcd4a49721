#pragma once

// Bounds what malloc keeps of freed memory. That memory is in no account of the memory budget, and
// counts for the limit of a container all the same.

#include <cstddef>

namespace psd::server {

// Decides when malloc is worth trimming: when `worth_bytes` more are free than before, since the
// last trim. What is free stays free after a trim, without its pages. Thread-compatible.
class TrimRule {
 public:
  explicit TrimRule(size_t worth_bytes) : worth_bytes_(worth_bytes) {}

  bool ShouldTrim(size_t free_bytes);

 private:
  const size_t worth_bytes_;
  size_t least_free_bytes_ = 0;  // since the last trim
};

// Malloc, of the whole process. Make one before the first thread starts. Thread-compatible.
class BoundedMalloc {
 public:
  // `kept_bytes`: how much freed memory may stay with malloc.
  explicit BoundedMalloc(size_t kept_bytes);

  // Call from time to time. Returns the pages of freed pieces between live ones, which malloc does
  // only when told: large messages that came through the heap would stay resident.
  void TrimIfWorth();

 private:
  TrimRule rule_;
};

}  // namespace psd::server
