#pragma once

// Records how far behind gradients were, at each step and per parameter.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace psd::optim {

// Thread-compatible.
class StalenessRecord {
 public:
  struct Entry {
    uint64_t last = 0, most = 0, sum = 0, steps = 0;
    double mean() const {
      return steps == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(steps);
    }
  };

  explicit StalenessRecord(size_t parameters) : entries_(parameters) {}

  // Records that a gradient of version `read` has been applied to version `current` of a parameter.
  // Returns the number of versions between them. Records nothing and returns 0 if `read` is unknown
  // (0) or is later than `current`.
  uint64_t Add(size_t parameter, uint64_t read, uint64_t current) {
    if (read == 0 || read > current) return 0;
    const uint64_t behind = current - read;
    for (Entry* entry : {&entries_[parameter], &all_}) {
      entry->last = behind;
      entry->most = std::max(entry->most, behind);
      entry->sum += behind;
      ++entry->steps;
    }
    return behind;
  }

  const Entry& all() const { return all_; }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  Entry all_;
  std::vector<Entry> entries_;  // by parameter
};

}  // namespace psd::optim
