#pragma once

// The names and signatures of the optimizers' kernels. Each device has a table with the kernels
// that it offers; the CPU's table has all that step. A kernel is added to a stream, null for the
// CPU; addresses in a batch are in the memory of the stream's device.

#include "absl/status/status.h"
#include "core/base/kernel_table.h"
#include "core/base/stream.h"
#include "kernels/optim/adadelta.h"
#include "kernels/optim/adagrad.h"
#include "kernels/optim/adam.h"
#include "kernels/optim/adamax.h"
#include "kernels/optim/arrays.h"
#include "kernels/optim/rmsprop.h"
#include "kernels/optim/rprop.h"
#include "kernels/optim/sgd.h"

namespace psd::optim {

// Steps all arrays of the batch. Must be thread-safe.
template <typename Options>
using OptimKernel = void(Stream* stream, const Options& options, const kernels::OptimBatch& batch);
template <typename Options>
using OptimKernelName = KernelName<OptimKernel<Options>>;

inline constexpr OptimKernelName<kernels::SgdOptions> kSgd{"sgd", 64};
inline constexpr OptimKernelName<kernels::AdamOptions> kAdam{"adam", 65};  // "adamw" too
inline constexpr OptimKernelName<kernels::AdagradOptions> kAdagrad{"adagrad", 66};
inline constexpr OptimKernelName<kernels::AdadeltaOptions> kAdadelta{"adadelta", 67};
inline constexpr OptimKernelName<kernels::AdamaxOptions> kAdamax{"adamax", 68};
inline constexpr OptimKernelName<kernels::RmsPropOptions> kRmsProp{"rmsprop", 69};
inline constexpr OptimKernelName<kernels::RpropOptions> kRprop{"rprop", 70};

// Adds work that sums the squares of all gradients of the batch, of which nothing else is read. For
// each array, one after the other, `sums` has one element for each kernels::kOptimPartElements of
// its elements, of which the last may have fewer. A sum is finite if and only if its elements are,
// except that a sum of doubles may overflow. Devices only: the host calls kernels::SumOfSquares.
// Errors: those that the device gives for work that it refuses; nothing was added then.
using SumSquaresKernel = absl::Status(Stream* stream, const kernels::OptimBatch& batch,
                                      double* sums);
inline constexpr KernelName<SumSquaresKernel> kSumSquares{"SumSquares", 71};

// The CPU's kernels, which are all that step. Never destroyed.
const KernelTable& CpuOptimKernels();

}  // namespace psd::optim
