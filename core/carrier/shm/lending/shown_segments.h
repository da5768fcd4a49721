#pragma once

// The segments of this process that the other end of a link knows.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace psd::carrier {

// Remembers for each segment whether its descriptor was passed, whether the other end has declined
// it, and, once it is gone, whether the other end has forgotten it. Thread-compatible.
class ShownSegments {
 public:
  // Checks whether a message may name these segments, and begins to show those that the other end
  // does not know: they are added to `fresh`, and must be passed before the message is sent, or
  // hidden again. Returns false and changes nothing if a segment was declined, if another thread is
  // passing it now, or if too many are known (kMaxSegments).
  bool Name(const std::vector<uint64_t>& segments, std::vector<uint64_t>& fresh);
  // Requires: Name added the segment to `fresh`.
  void Passed(uint64_t segment);
  void Hide(uint64_t segment);

  // The other end cannot map the segment. No message may name it any more.
  void Decline(uint64_t segment);
  // The segment exists no longer. Returns whether the other end is to be told.
  bool Gone(uint64_t segment);
  // The other end has forgotten a segment that is gone. Errors: INVALID_ARGUMENT if that segment
  // is not gone, or was forgotten already.
  absl::Status Forget(uint64_t segment);

  size_t size() const { return segments_.size(); }

 private:
  enum class State { kPassing, kShown, kDeclined, kGone };

  absl::flat_hash_map<uint64_t, State> segments_;
};

}  // namespace psd::carrier
