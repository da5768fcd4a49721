#pragma once

// Runs the dense part of a step: the arrays of all parameters, with as few kernel calls as
// possible, and on several threads if the step is large. Makes the events of a step on devices.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/completion_threads.h"
#include "core/base/parallel_for.h"
#include "core/base/stream.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/option_groups.h"
#include "core/optim/steps/step_request.h"
#include "core/tensor/dtype.h"
#include "kernels/optim/arrays.h"

namespace psd::optim {

// The number of elements that one thread takes at a time. This is work for at least a tenth of a
// millisecond, several times the cost of waking another thread. A step with fewer elements than two
// such pieces runs on the calling thread alone.
inline constexpr int64_t kPieceElements = 256 * 1024;
static_assert(kPieceElements % kernels::kOptimPartElements == 0);

// Confined to the thread of the step.
class StepSweep {
 public:
  // `functions` has the function of each group, by the group's number, and must outlive Start.
  // `parameters` is the expected number of arrays.
  StepSweep(absl::Span<const FunctionPtr> functions, const StepTerms& terms, size_t parameters);

  // Adds the arrays of a whole parameter of `group`, which takes its step number `step` as work of
  // `stream`, null for the CPU. `arrays` is copied; the memory that it points to must outlive the
  // work. Neighbours with equal stream, dtype and step number are stepped by one call.
  void Add(size_t group, Stream* stream, DType dtype, int64_t step,
           const kernels::OptimArrays& arrays);

  // Start also returns an event of `stream`, to which the caller has added other work of the step.
  void Covers(Stream* stream) { streams_.insert(stream); }

  // Applies everything that was added, on this thread and on `helpers`. Returns when all of it is
  // done on the CPU and added to the streams, with an event for each of these. The result does not
  // depend on the number of helpers. Errors: those of the devices; the CPU has none.
  absl::StatusOr<std::vector<DeviceEvent>> Start(const Helpers& helpers) const;

 private:
  // One call of a function.
  struct Call {
    Stream* stream;
    kernels::OptimBatch batch;  // without the address of its arrays
  };
  // Arrays that one thread steps by one function.
  struct Work {
    const FunctionalOptimizer* function;
    std::vector<kernels::OptimArrays> arrays = {};
    absl::InlinedVector<Call, 1> calls = {};  // in the order of their arrays
    size_t elements = 0;

    // Adds arrays to the last call if it is like `call`, or else to a new call like `call`.
    void Add(const Call& call, const kernels::OptimArrays& added);
    void Run() const;
  };
  void RunKernels(const Helpers& helpers) const;
  // Divides the work for several threads: small arrays share a piece, and large ones are cut at
  // multiples of kOptimPartElements.
  std::vector<Work> Pieces() const;
  // Adds arrays to the last piece, and to new ones when it is full.
  static void AddToPieces(const FunctionalOptimizer& function, const Call& call,
                          const kernels::OptimArrays& arrays, std::vector<Work>& pieces);

  Call call_ = {};            // for the arrays that are added now
  std::vector<Work> groups_;  // one for each group
  size_t elements_ = 0;
  absl::flat_hash_set<Stream*> streams_;
};

}  // namespace psd::optim
