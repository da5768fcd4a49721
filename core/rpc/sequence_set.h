#pragma once

// A set of sequence numbers, stored as a watermark and the ranges beyond it.

#include <cstdint>
#include <map>

#include "core/rpc/header.h"

namespace psd::rpc {

// A value. Thread-compatible.
class SequenceSet {
 public:
  // Adds first..last. Requires: 1 <= first <= last.
  void Add(uint64_t first, uint64_t last);
  void Add(uint64_t sequence) { Add(sequence, sequence); }
  // Adds what `ack` lists. Requires: IsWellFormed(ack).
  void AddAll(const Ack& ack);
  bool Contains(uint64_t sequence) const;

  // All numbers of 1..watermark() are in the set; watermark() + 1 is not.
  uint64_t watermark() const { return watermark_; }
  // The ranges beyond the watermark: first number -> last number. At least one number lies between
  // two ranges, and between the first range and the watermark.
  const std::map<uint64_t, uint64_t>& ranges() const { return ranges_; }

  // Returns the whole set in the form for the wire.
  Ack ToAck() const;

 private:
  uint64_t watermark_ = 0;
  std::map<uint64_t, uint64_t> ranges_;
};

// Returns whether `ack` is well formed: its pairs are in order, disjoint and beyond the watermark.
bool IsWellFormed(const Ack& ack);

}  // namespace psd::rpc
