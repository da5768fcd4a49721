#pragma once

// Which bytes travel from which rank to which in one call of a group. Pure: every rank computes the
// same plan from the call.
//
// A call has up to two phases. In phase 0 every rank sends parts of its inputs. There are two ways
// of an all-reduce. In the direct one, every rank gets all inputs, and reduces them itself. In the
// other one, the tensor is cut into one part for each rank: phase 0 brings part j of all inputs to
// rank j, which reduces it, and phase 1 brings the reduced parts to all ranks. The direct way takes
// one exchange instead of two, but more than two ranks send more bytes then. Either way an element
// is reduced in the order of the ranks.

#include <cstddef>

#include "core/services/collectives/collective_call.h"

namespace psd::services {

// Bytes of a tensor.
struct Range {
  size_t offset = 0;
  size_t size = 0;
};

struct PlanLimits {
  // If no rank sends another more than this many bytes in phase 0, they travel with the notice that
  // the rank has entered the call, however many ranks there are. An all-reduce of so few bytes is
  // direct, and what is reduced then is reduced when the call completes.
  size_t small_bytes = size_t{32} << 10;
  // The bytes that are reduced at once. Bytes that are not reduced travel in one piece, which
  // carriers cut themselves. A multiple of 64.
  size_t piece_bytes = size_t{1} << 20;
  // An all-reduce of at most most_direct_bytes is direct if every rank sends at most
  // most_extra_bytes more than it would otherwise. Two ranks send no more. See decision 0023 for
  // the measurements.
  size_t most_direct_bytes = size_t{1} << 20;
  size_t most_extra_bytes = size_t{384} << 10;
  // More bytes of phase 0 travel with the notice, too, if no rank sends another more than
  // notice_bytes, and if at most most_notice_bytes come to one rank from all others together: a
  // rank that is late keeps them, for all calls that are under way. To ranks that share memory
  // most_shared_bytes may come: there they are lent, if they lie in memory that can be lent, and a
  // late rank keeps no copy of them. An all-reduce of such ranks is direct if all inputs can travel
  // so.
  size_t notice_bytes = size_t{1} << 20;
  size_t most_notice_bytes = size_t{1} << 20;
  size_t most_shared_bytes = size_t{3} << 20;
};

// A value. Thread-compatible.
class CallPlan {
 public:
  // Requires: CheckCall passed, and the call has a form unless it is a barrier.
  CallPlan(const CollectiveCall& call, int ranks, const PlanLimits& limits = {});

  // Whether the bytes of phase 0 travel with the notices, in one piece.
  bool tells_bytes() const { return tells_bytes_; }
  // Whether any bytes travel in messages of their own.
  bool sends_pieces() const { return !tells_bytes_ || has_second_phase(); }
  // Whether the rank reduces pieces, each when it has come from all ranks. If not, and the call
  // reduces, there is so little to reduce that it is done when the call completes.
  bool reduces_pieces() const { return reduces_pieces_; }
  bool has_second_phase() const { return operation_ == Operation::kAllReduce && !direct_; }

  // The bytes that `from` sends `to`. In phase 0 the range is of the input of `from` (for kScatter
  // of its `to`-th input), in phase 1 of the result, in which they have the same place.
  Range Block(int phase, int from, int to) const;
  // The number of pieces in which that block travels; 0 if it is empty.
  size_t Pieces(int phase, int from, int to) const;
  // Requires: index < Pieces(phase, from, to).
  Range Piece(int phase, int from, int to, size_t index) const;

 private:
  size_t Lines() const;  // of the tensor: a part is a number of cache lines
  Range Part(int rank) const;
  // The most bytes that one rank sends another in phase 0.
  size_t LargestBlock() const;

  Operation operation_;
  int ranks_;
  int root_;
  size_t bytes_ = 0;  // of the form
  size_t piece_bytes_;
  bool reduces_pieces_;
  bool direct_ = false;  // of an all-reduce
  bool tells_bytes_;
};

}  // namespace psd::services
