#include "core/rpc/sequence_set.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace psd::rpc {

void SequenceSet::Add(uint64_t first, uint64_t last) {
  if (last <= watermark_) return;
  if (first <= watermark_ + 1 && ranges_.empty()) {  // the usual case: numbers come in order
    watermark_ = last;
    return;
  }
  // Merge every range that overlaps first..last or is next to it.
  auto next = ranges_.upper_bound(first);
  if (next != ranges_.begin() && std::prev(next)->second + 1 >= first) --next;
  while (next != ranges_.end() && next->first <= last + 1) {
    first = std::min(first, next->first);
    last = std::max(last, next->second);
    next = ranges_.erase(next);
  }
  if (first <= watermark_ + 1) {
    watermark_ = last;
  } else {
    ranges_.emplace(first, last);
  }
}

void SequenceSet::AddAll(const Ack& ack) {
  if (ack.watermark > 0) Add(1, ack.watermark);
  for (size_t i = 0; i + 1 < ack.ranges.size(); i += 2) Add(ack.ranges[i], ack.ranges[i + 1]);
}

bool SequenceSet::Contains(uint64_t sequence) const {
  if (sequence <= watermark_) return true;
  auto next = ranges_.upper_bound(sequence);
  return next != ranges_.begin() && std::prev(next)->second >= sequence;
}

Ack SequenceSet::ToAck() const {
  Ack ack{watermark_, {}};
  ack.ranges.reserve(2 * ranges_.size());
  for (const auto& [first, last] : ranges_) {
    ack.ranges.push_back(first);
    ack.ranges.push_back(last);
  }
  return ack;
}

bool IsWellFormed(const Ack& ack) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max() / 2;
  if (ack.watermark > kMax || ack.ranges.size() % 2 != 0) return false;
  uint64_t before = ack.watermark;
  for (size_t i = 0; i < ack.ranges.size(); i += 2) {
    uint64_t first = ack.ranges[i], last = ack.ranges[i + 1];
    if (first <= before || last < first || last > kMax) return false;
    before = last;
  }
  return true;
}

}  // namespace psd::rpc
