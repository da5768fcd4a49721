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
  const bool root_sends = operation_ == Operation::kBroadcast || operation_ == Operation::kScatter;
  const size_t senders = root_sends || ranks == 1 ? 1 : static_cast<size_t>(ranks - 1);
  const size_t most = call.shares_memory ? limits.most_shared_bytes : limits.most_notice_bytes;
  const auto fits_notice = [&](size_t block) {
    return block <= limits.small_bytes || (block <= limits.notice_bytes && block <= most / senders);
  };
  if (operation_ == Operation::kAllReduce) {
    // On the direct way a rank sends n - 1 times all bytes, otherwise n - 1 parts of them, twice.
    // The difference is (n - 1) (n - 2) parts.
    const auto extra_parts = static_cast<size_t>(ranks - 1) * static_cast<size_t>(ranks - 2);
    const bool few_extra_bytes = extra_parts == 0 || bytes_ / static_cast<size_t>(ranks) <=
                                                         limits.most_extra_bytes / extra_parts;
    direct_ = bytes_ <= limits.small_bytes || (call.shares_memory && fits_notice(bytes_)) ||
              (bytes_ <= limits.most_direct_bytes && few_extra_bytes);
  }
  const size_t block = LargestBlock();
  tells_bytes_ = fits_notice(block);
  reduces_pieces_ = Reduces(operation_) && (has_second_phase() || block > limits.small_bytes);
  if (tells_bytes_) piece_bytes_ = std::max(piece_bytes_, block);
}

size_t CallPlan::Lines() const {
  return (bytes_ + kBlockAlignment - 1) / kBlockAlignment;
}

size_t CallPlan::LargestBlock() const {
  const auto ranks = static_cast<size_t>(ranks_);
  if (operation_ == Operation::kReduceScatter) return bytes_ / ranks;
  if (!has_second_phase()) return bytes_;
  return std::min(bytes_, (Lines() + ranks - 1) / ranks * kBlockAlignment);
}

// The parts differ by at most a cache line, and start at multiples of one.
Range CallPlan::Part(int rank) const {
  const size_t lines = Lines();
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
