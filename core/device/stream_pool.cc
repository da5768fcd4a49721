#include "core/device/stream_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd {
namespace {

// Adds the points of `more` to `points`, keeping the later one of each stream.
void Unite(std::vector<StreamPoint>& points, const std::vector<StreamPoint>& more) {
  for (const StreamPoint& point : more) {
    const auto same = std::find_if(points.begin(), points.end(), [&](const StreamPoint& each) {
      return each.stream == point.stream;
    });
    if (same == points.end()) {
      points.push_back(point);
    } else {
      same->position = std::max(same->position, point.position);
    }
  }
}

}  // namespace

StreamPool::StreamPool(size_t bytes) {
  if (bytes > 0) free_[0].bytes = bytes;
}

std::optional<StreamPool::Part> StreamPool::Take(size_t bytes, uint32_t stream) {
  PSD_CHECK(bytes > 0, "a part of a pool has at least one byte");
  auto found = BestFor(bytes, stream);
  if (found == free_.end()) {
    JoinAll();
    found = BestFor(bytes, stream);
    if (found == free_.end()) return std::nullopt;
  }
  Part part;
  part.offset = found->first;
  Free rest = std::move(found->second);
  free_.erase(found);
  for (const StreamPoint& point : rest.after)
    if (point.stream != stream && !HasPassed(point)) part.after.push_back(point);
  rest.bytes -= bytes;
  if (rest.bytes > 0) free_.emplace(part.offset + bytes, std::move(rest));
  taken_.emplace(part.offset, bytes);
  return part;
}

void StreamPool::Give(size_t offset, std::vector<StreamPoint> after) {
  const auto taken = taken_.find(offset);
  PSD_CHECK(taken != taken_.end(), absl::StrCat("no part of the pool begins at ", offset));
  Free part;
  part.bytes = taken->second;
  Unite(part.after, after);
  taken_.erase(taken);
  JoinAround(free_.emplace(offset, std::move(part)).first);
}

void StreamPool::Passed(StreamPoint point) {
  uint64_t& position = passed_[point.stream];
  position = std::max(position, point.position);
}

size_t StreamPool::largest_free_bytes() const {
  size_t largest = 0, run = 0, end = 0;
  for (const auto& [offset, part] : free_) {
    run = offset == end ? run + part.bytes : part.bytes;
    end = offset + part.bytes;
    largest = std::max(largest, run);
  }
  return largest;
}

bool StreamPool::HasPassed(StreamPoint point) const {
  const auto found = passed_.find(point.stream);
  return found != passed_.end() && found->second >= point.position;
}

void StreamPool::Prune(std::vector<StreamPoint>& after) const {
  after.erase(std::remove_if(after.begin(), after.end(),
                             [this](const StreamPoint& point) { return HasPassed(point); }),
              after.end());
}

size_t StreamPool::WaitsOf(const Free& part, uint32_t stream) const {
  return static_cast<size_t>(std::count_if(
      part.after.begin(), part.after.end(),
      [&](const StreamPoint& point) { return point.stream != stream && !HasPassed(point); }));
}

StreamPool::FreeParts::iterator StreamPool::BestFor(size_t bytes, uint32_t stream) {
  auto best = free_.end();
  std::pair<size_t, size_t> least;  // waits, size
  for (auto part = free_.begin(); part != free_.end(); ++part) {
    if (part->second.bytes < bytes) continue;
    const std::pair<size_t, size_t> cost(WaitsOf(part->second, stream), part->second.bytes);
    if (best != free_.end() && cost >= least) continue;
    best = part;
    least = cost;
  }
  return best;
}

void StreamPool::JoinAround(FreeParts::iterator part) {
  const auto join = [this](FreeParts::iterator first, FreeParts::iterator second) {
    if (first->first + first->second.bytes != second->first) return false;
    Prune(first->second.after);
    Prune(second->second.after);
    if (first->second.after != second->second.after) return false;
    first->second.bytes += second->second.bytes;
    free_.erase(second);
    return true;
  };
  const auto next = std::next(part);
  if (next != free_.end()) join(part, next);
  if (part != free_.begin()) join(std::prev(part), part);
}

void StreamPool::JoinAll() {
  for (auto part = free_.begin(); part != free_.end();) {
    const auto next = std::next(part);
    if (next == free_.end() || part->first + part->second.bytes != next->first) {
      part = next;
      continue;
    }
    part->second.bytes += next->second.bytes;
    Unite(part->second.after, next->second.after);
    free_.erase(next);
  }
}

}  // namespace psd
