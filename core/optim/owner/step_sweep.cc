#include "core/optim/owner/step_sweep.h"

#include <algorithm>
#include <deque>

#include "absl/container/inlined_vector.h"
#include "core/base/status.h"
#include "core/tensor/dtype.h"

namespace psd::optim {
namespace {

// The arrays that one thread steps at a time, all with the same function.
struct Piece {
  const FunctionalOptimizer* function = nullptr;
  std::vector<StepArrays> arrays;
  int64_t elements = 0;
};

// Divides arrays into pieces: small arrays share a piece, and large ones are cut at multiples of
// kPartElements.
class Pieces {
 public:
  void Add(const FunctionalOptimizer& function, const StepArrays& arrays) {
    int64_t size = 0;
    for (int64_t first = 0; first < arrays.elements; first += size) {
      Piece& piece = Open(function);
      const int64_t room = kPieceElements - piece.elements;
      const int64_t parts = (room + kPartElements - 1) / kPartElements;
      size = std::min(parts * kPartElements, arrays.elements - first);
      piece.elements += size;
      piece.arrays.push_back(size == arrays.elements ? arrays : Cut(function, arrays, first, size));
    }
  }

  size_t size() const { return pieces_.size(); }
  const Piece& operator[](size_t index) const { return pieces_[index]; }

 private:
  // Returns a piece for `function` that has room: the last one, or a new one.
  Piece& Open(const FunctionalOptimizer& function) {
    if (pieces_.empty() || pieces_.back().function != &function ||
        pieces_.back().elements >= kPieceElements) {
      pieces_.emplace_back().function = &function;
    }
    return pieces_.back();
  }

  StepArrays Cut(const FunctionalOptimizer& function, const StepArrays& arrays, int64_t first,
                 int64_t size) {
    StepArrays part = arrays;
    const size_t bytes = static_cast<size_t>(first) * ItemSize(arrays.dtype);
    part.parameter += bytes;
    part.next += bytes;
    part.gradient += bytes;
    auto& state = states_.emplace_back();
    const std::vector<StateSlot> slots = function.Slots(arrays.dtype);
    for (size_t i = 0; i < slots.size(); ++i)
      state.push_back(arrays.state[i] + static_cast<size_t>(first) * ItemSize(slots[i].dtype));
    part.state = absl::MakeConstSpan(state);
    part.elements = size;
    part.first_element += first;
    return part;
  }

  std::vector<Piece> pieces_;
  std::deque<absl::InlinedVector<std::byte*, 3>> states_;  // state pointers of the cut arrays
};

}  // namespace

StepSweep::StepSweep(absl::Span<const FunctionPtr> functions, size_t parameters) {
  for (const FunctionPtr& function : functions) {
    groups_.push_back({function.get(), {}});
    groups_.back().arrays.reserve(parameters / functions.size());
  }
}

absl::Status StepSweep::Run(const Helpers& helpers) const {
  RunKernels(helpers);
  absl::Status done;
  for (Device* device : devices_) done.Update(device->Synchronize());
  return done;
}

void StepSweep::RunKernels(const Helpers& helpers) const {
  if (helpers.count <= 0 || elements_ < 2 * kPieceElements) {
    for (const Group& group : groups_)
      if (!group.arrays.empty()) group.function->ApplyAll(group.arrays);
    return;
  }
  Pieces pieces;
  for (const Group& group : groups_)
    for (const StepArrays& arrays : group.arrays) pieces.Add(*group.function, arrays);
  ParallelFor(helpers, pieces.size(),
              [&](size_t i) { pieces[i].function->ApplyAll(pieces[i].arrays); });
}

}  // namespace psd::optim
