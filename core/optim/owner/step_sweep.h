#pragma once

// The dense part of one step: all its parameters' arrays, swept through as one, on several threads
// where there is enough to do.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/base/parallel_for.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/option_groups.h"

namespace psd::optim {

// Elements that one thread takes at a time: a tenth of a millisecond and more, several times what
// it costs to wake another. A step of fewer than two such pieces stays on its thread.
inline constexpr int64_t kPieceElements = 256 * 1024;
static_assert(kPieceElements % kPartElements == 0);

// Confined to the thread of the step.
class StepSweep {
 public:
  // The functions of the groups by index; they outlive Run. Some `parameters` will be added.
  StepSweep(absl::Span<const FunctionPtr> functions, size_t parameters);

  // `arrays` (and what they point at) of a parameter of `group`: all of it.
  void Add(size_t group, const StepArrays& arrays) {
    groups_[group].arrays.push_back(arrays);
    elements_ += arrays.elements;
  }

  // Applies everything added, here and on `helpers`; returns when all is done. The result does not
  // depend on the helpers.
  void Run(const Helpers& helpers) const;

 private:
  struct Group {
    const FunctionalOptimizer* function;
    std::vector<StepArrays> arrays;
  };
  std::vector<Group> groups_;
  int64_t elements_ = 0;
};

}  // namespace psd::optim
