#pragma once

// Decides which part of a device's memory a block gets, and which work must be done first.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace psd {

// A point in the work of a stream: behind the first `position` operations that were added to it.
struct StreamPoint {
  uint32_t stream = 0;
  uint64_t position = 0;

  friend bool operator==(StreamPoint a, StreamPoint b) {
    return a.stream == b.stream && a.position == b.position;
  }
};

// Hands out parts of a range of `bytes` bytes. A part that was given back may be handed out again
// at once, although work still uses it: the taker's stream waits for that work first. Only decides,
// and touches neither memory nor device. Thread-compatible.
class StreamPool {
 public:
  explicit StreamPool(size_t bytes);

  struct Part {
    size_t offset = 0;
    // The taker's stream waits for these points before it uses the part. They are of other streams
    // and have not passed.
    std::vector<StreamPoint> after;
  };

  // Returns a part of `bytes` bytes for `stream`, or nullopt if no free part is large enough.
  // Prefers a part for which the stream need not wait, and among these the smallest. Free
  // neighbours that wait for different work are joined only if nothing else is large enough.
  // Requires: bytes > 0.
  std::optional<Part> Take(size_t bytes, uint32_t stream);
  // Takes the part back that begins at `offset`. It is free after the work at all points `after`.
  // Requires: Take has handed it out.
  void Give(size_t offset, std::vector<StreamPoint> after);
  // Notes that the work before `point` is done, so nobody needs to wait for it.
  void Passed(StreamPoint point);

  // The size of the largest part that Take can hand out.
  size_t largest_free_bytes() const;

 private:
  struct Free {
    size_t bytes = 0;
    std::vector<StreamPoint> after;  // at most one point for each stream
  };
  using FreeParts = std::map<size_t, Free>;  // by offset

  bool HasPassed(StreamPoint point) const;
  // Removes the points that have passed.
  void Prune(std::vector<StreamPoint>& after) const;
  size_t WaitsOf(const Free& part, uint32_t stream) const;
  FreeParts::iterator BestFor(size_t bytes, uint32_t stream);
  // Joins the part with its neighbours that wait for the same work.
  void JoinAround(FreeParts::iterator part);
  void JoinAll();

  FreeParts free_;
  absl::flat_hash_map<size_t, size_t> taken_;       // sizes by offset
  absl::flat_hash_map<uint32_t, uint64_t> passed_;  // positions by stream
};

}  // namespace psd
