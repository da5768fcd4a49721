#pragma once

// Runs the dense part of a step: the arrays of all parameters, with as few kernel calls as
// possible, and on several threads if the step is large.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/base/device.h"
#include "core/base/parallel_for.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/option_groups.h"

namespace psd::optim {

// The number of elements that one thread takes at a time. This is work for at least a tenth of a
// millisecond, several times the cost of waking another thread. A step with fewer elements than two
// such pieces runs on the calling thread alone.
inline constexpr int64_t kPieceElements = 256 * 1024;
static_assert(kPieceElements % kPartElements == 0);

// Confined to the thread of the step.
class StepSweep {
 public:
  // `functions` has the function of each group, by the group's number, and must outlive Run.
  // `parameters` is the expected number of arrays.
  StepSweep(absl::Span<const FunctionPtr> functions, size_t parameters);

  // Adds the arrays of a whole parameter of `group`. They must outlive Run.
  void Add(size_t group, const StepArrays& arrays) {
    groups_[group].arrays.push_back(arrays);
    if (arrays.device != nullptr) devices_.insert(arrays.device);
    elements_ += arrays.elements;
  }

  // Applies everything that was added, on this thread and on `helpers`, and returns when all of it
  // is done. The result does not depend on the number of helpers.
  // Errors: those of the devices; the CPU has none.
  absl::Status Run(const Helpers& helpers) const;

 private:
  struct Group {
    const FunctionalOptimizer* function;
    std::vector<StepArrays> arrays;
  };
  void RunKernels(const Helpers& helpers) const;

  std::vector<Group> groups_;
  int64_t elements_ = 0;
  absl::flat_hash_set<Device*> devices_;  // the devices other than the CPU
};

}  // namespace psd::optim
