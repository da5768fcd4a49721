#pragma once

// Which versions of a parameter a gradient was computed from.

#include <algorithm>
#include <cstdint>

namespace psd {

// Of a sum: the oldest known version among its parts, and whether a part came from one that nobody
// knows. A value; thread-compatible.
class ReadVersion {
 public:
  // Of one gradient. 0 means that its version is unknown.
  ReadVersion(uint64_t version = 0)  // NOLINT: a version number is a ReadVersion
      : oldest_(version), has_unknown_(version == 0) {}

  // Makes it that of the sum with another gradient.
  void Add(ReadVersion other) {
    const bool both = oldest_ != 0 && other.oldest_ != 0;
    oldest_ = both ? std::min(oldest_, other.oldest_) : std::max(oldest_, other.oldest_);
    has_unknown_ |= other.has_unknown_;
  }

  // 0 if no version is known.
  uint64_t oldest() const { return oldest_; }
  bool has_unknown() const { return has_unknown_; }

 private:
  uint64_t oldest_;
  bool has_unknown_;
};

}  // namespace psd
