#pragma once

// Launches the steps of dense optimizers on a GPU. Only programs that are built with CUDA link
// these functions. Thread-safe.
//
// A step reads a table of the batch's arrays from the memory of the device. The caller makes it:
//   FillOptimTable(batch, pinned) in OptimTableBytes(batch) bytes of pinned memory, then a copy to
//   the device on the stream of the launch.
// The table must live until the launch is done; `batch.arrays` only until the call returns.

#include <cstddef>

#include "kernels/optim/adadelta.h"
#include "kernels/optim/adagrad.h"
#include "kernels/optim/adam.h"
#include "kernels/optim/adamax.h"
#include "kernels/optim/arrays.h"
#include "kernels/optim/rmsprop.h"
#include "kernels/optim/rprop.h"
#include "kernels/optim/sgd.h"

struct CUstream_st;  // *cudaStream_t

namespace psd::kernels::cuda {

size_t OptimTableBytes(const OptimBatch& batch);
// Requires: `table` is aligned to 8 bytes.
void FillOptimTable(const OptimBatch& batch, void* table);

// Adds one launch to the stream that steps all arrays of the batch, also thousands of them. Nothing
// is launched if no array has elements. `table` is the filled table in the device's memory. Returns
// 0 or the cudaError_t of the launch; errors of the kernel itself are reported by the stream. The
// bits of the result do not depend on the device, and are those of the CPU's kernels on an
// instruction set with fused multiply-adds; only the bits of NaN may differ.
int LaunchStep(const SgdOptions& options, const OptimBatch& batch, const void* table,
               CUstream_st* stream);
int LaunchStep(const AdagradOptions& options, const OptimBatch& batch, const void* table,
               CUstream_st* stream);
int LaunchStep(const AdamOptions& options, const OptimBatch& batch, const void* table,
               CUstream_st* stream);
int LaunchStep(const AdamaxOptions& options, const OptimBatch& batch, const void* table,
               CUstream_st* stream);
int LaunchStep(const AdadeltaOptions& options, const OptimBatch& batch, const void* table,
               CUstream_st* stream);
int LaunchStep(const RmsPropOptions& options, const OptimBatch& batch, const void* table,
               CUstream_st* stream);
int LaunchStep(const RpropOptions& options, const OptimBatch& batch, const void* table,
               CUstream_st* stream);

// Adds one launch that sums the squares of all gradients of the batch (kernels/cuda/norm.h). The
// gradients have one element of `sums`, in the device's memory, for each kOptimPartElements of
// their elements, of which the last of a gradient may have fewer. Of the table only the gradients
// are read. Returns as LaunchStep.
int LaunchSumSquares(const OptimBatch& batch, const void* table, double* sums, CUstream_st* stream);

}  // namespace psd::kernels::cuda
