#pragma once

// Launches the kernels of rows on a GPU (kernels/cuda/rows.h). Only programs that are built with
// CUDA link these functions. Thread-safe.
//
// All addresses are in the memory of the device, and aligned to their type. Each call returns 0 or
// the first cudaError_t of its launches; errors of the kernels themselves are reported by the
// stream. Ids are in range.

#include <cstddef>
#include <cstdint>

#include "kernels/optim/arrays.h"
#include "kernels/rows/device_rows.h"
#include "kernels/rows/rows_optim.h"

struct CUstream_st;  // *cudaStream_t

namespace psd::kernels::cuda {

// Sets `bytes` to the size of the scratch for grouping `size` positions by ids below `rows`, which
// depends on the current GPU of the thread.
int GetGroupRowsScratch(size_t size, size_t rows, size_t& bytes);
// Groups the positions 0 to groups.size - 1 by their ids, which are below `rows`. `scratch` has the
// size that GetGroupRowsScratch says, and is aligned to 256. Requires: groups.room is not less than
// the number of different ids.
int LaunchGroupRows(const int64_t* ids, size_t rows, const DeviceRowGroups& groups, void* scratch,
                    CUstream_st* stream);

// Sets row k of `out`, which has groups.room rows, to the sum of the rows at the positions of group
// k. Rows behind the last group stay as they are.
int LaunchSumRows(OptimType type, const DeviceRowGroups& groups, const void* rows, size_t width,
                  void* out, CUstream_st* stream);

// Steps the rows of the batch in place, in one launch. `step` counts from 1.
int LaunchStepRows(const RowSgdOptions& options, int64_t step, const DeviceRowBatch& batch,
                   CUstream_st* stream);
int LaunchStepRows(const RowAdagradOptions& options, int64_t step, const DeviceRowBatch& batch,
                   CUstream_st* stream);
int LaunchStepRows(const SparseAdamOptions& options, int64_t step, const DeviceRowBatch& batch,
                   CUstream_st* stream);
// Row-wise Adagrad.
int LaunchStepRowwise(const RowAdagradOptions& options, int64_t step, const DeviceRowBatch& batch,
                      CUstream_st* stream);

}  // namespace psd::kernels::cuda
