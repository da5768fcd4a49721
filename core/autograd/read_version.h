#pragma once

// The versions of a parameter from which a gradient was computed.

#include <algorithm>
#include <cstdint>

namespace psd {

// For a sum of gradients it holds the oldest known version among the terms, and whether the version
// of any term is unknown. A value; thread-compatible.
class ReadVersion {
 public:
  // The version of a single gradient; 0 means that it is unknown.
  ReadVersion(uint64_t version = 0)  // NOLINT: a version number is a ReadVersion
      : oldest_(version), has_unknown_(version == 0) {}

  // Makes this the version of the sum of this gradient and another.
  void Add(ReadVersion other) {
    const bool both = oldest_ != 0 && other.oldest_ != 0;
    oldest_ = both ? std::min(oldest_, other.oldest_) : std::max(oldest_, other.oldest_);
    has_unknown_ |= other.has_unknown_;
  }

  // The oldest known version; 0 if none is known.
  uint64_t oldest() const { return oldest_; }
  bool has_unknown() const { return has_unknown_; }

 private:
  uint64_t oldest_;
  bool has_unknown_;
};

}  // namespace psd
