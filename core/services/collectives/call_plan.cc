#include "core/services/collectives/call_plan.h"

#include <algorithm>

#include "core/base/buffer.h"

namespace psd::services {

CallPlan::CallPlan(const CollectiveCall& call, int ranks, const PlanLimits& limits)
    : operation_(call.operation),
      ranks_(ranks),
      root_(call.root),
      bytes_(call.form.has_value() ? call.form->NumBytes() : 0),
      piece_bytes_(limits.piece_bytes) {
  const size_t block =
      operation_ == Operation::kReduceScatter ? bytes_ / static_cast<size_t>(ranks) : bytes_;
  const bool small_shared =
      call.shares_memory && block <= limits.small_shared_bytes &&
      (ranks == 1 || block <= limits.most_shared_bytes / static_cast<size_t>(ranks - 1));
  small_ = block <= limits.small_bytes || small_shared;
  reduces_pieces_ = Reduces(operation_) && block > limits.small_bytes;
  if (small_) piece_bytes_ = std::max(piece_bytes_, block);
  // On the direct way a rank sends n - 1 times all bytes, otherwise n - 1 parts of them, twice. The
  // difference is (n - 1) (n - 2) parts.
  const auto extra_parts = static_cast<size_t>(ranks - 1) * static_cast<size_t>(ranks - 2);
  const bool few_extra_bytes = extra_parts == 0 || bytes_ / static_cast<size_t>(ranks) <=
                                                       limits.most_extra_bytes / extra_parts;
  direct_ = small_ || (bytes_ <= limits.most_direct_bytes && few_extra_bytes);
}

// The parts differ by at most a cache line, and start at multiples of one.
Range CallPlan::Part(int rank) const {
  const size_t lines = (bytes_ + kBlockAlignment - 1) / kBlockAlignment;
  const auto start = [&](int of) {
    const size_t line = lines / ranks_ * of + lines % ranks_ * of / ranks_;
    return std::min(line * kBlockAlignment, bytes_);
  };
  return {start(rank), start(rank + 1) - start(rank)};
}

Range CallPlan::Block(int phase, int from, int to) const {
  const Range all{0, bytes_};
  switch (operation_) {
    case Operation::kBarrier:
      return {};
    case Operation::kAllReduce:
      if (direct_) return phase == 0 ? all : Range{};
      return Part(phase == 0 ? to : from);
    case Operation::kReduceScatter: {
      const size_t block = bytes_ / static_cast<size_t>(ranks_);
      return phase == 0 ? Range{block * static_cast<size_t>(to), block} : Range{};
    }
    case Operation::kAllGather:
      return phase == 0 ? all : Range{};
    case Operation::kBroadcast:
    case Operation::kScatter:
      return phase == 0 && from == root_ ? all : Range{};
    case Operation::kGather:
      return phase == 0 && to == root_ ? all : Range{};
  }
  return {};
}

size_t CallPlan::Pieces(int phase, int from, int to) const {
  const Range block = Block(phase, from, to);
  if (block.size == 0) return 0;
  return reduces_pieces_ ? (block.size + piece_bytes_ - 1) / piece_bytes_ : 1;
}

Range CallPlan::Piece(int phase, int from, int to, size_t index) const {
  const Range block = Block(phase, from, to);
  if (!reduces_pieces_) return block;
  const size_t offset = index * piece_bytes_;
  return {block.offset + offset, std::min(piece_bytes_, block.size - offset)};
}

}  // namespace psd::services
