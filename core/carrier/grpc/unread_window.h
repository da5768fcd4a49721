#pragma once

// A bound for the bytes that one end of a link has sent and the other end has not read. gRPC keeps
// them in the memory of the receiver, in no account, and a window that gRPC measures may grow to
// tens of megabytes.
//
// The receiver tells its bound when the link is opened, and then how much it has read, at least
// once for every half of the bound. The sender stops at the bound. Pure; thread-compatible.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace psd::carrier {

// The sender's half.
class UnreadWindow {
 public:
  void set_bound(size_t bytes) { bound_ = bytes; }

  // Whether the next frame may be sent. So one frame may exceed the bound.
  bool MaySend() const { return sent_ == read_ || sent_ - read_ < bound_; }
  void OnSent(size_t bytes) { sent_ += bytes; }

  // To be called when the peer says that it has read `total` bytes since the link was opened. Its
  // threads may say so in any order. Errors: INVALID_ARGUMENT if that is more than was sent.
  absl::Status OnRead(uint64_t total) {
    if (total > sent_) {
      return absl::InvalidArgumentError(absl::StrCat("the peer says that it has read ", total,
                                                     " bytes, and it was sent ", sent_));
    }
    read_ = std::max(read_, total);
    return absl::OkStatus();
  }

 private:
  size_t bound_ = 0;
  uint64_t sent_ = 0;
  uint64_t read_ = 0;  // as far as the peer has told
};

// The receiver's half.
class ReadCount {
 public:
  explicit ReadCount(size_t bound) : bound_(bound) {}

  // Counts bytes that were read. Returns the number to tell the sender, if it is time or `at_once`.
  std::optional<uint64_t> Add(size_t bytes, bool at_once = false) {
    read_ += bytes;
    if (!at_once && read_ - told_ < bound_ / 2) return std::nullopt;
    return told_ = read_;
  }

 private:
  const size_t bound_;
  uint64_t read_ = 0;
  uint64_t told_ = 0;
};

}  // namespace psd::carrier
