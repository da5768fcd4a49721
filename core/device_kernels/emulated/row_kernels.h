#pragma once

// The kernels of rows for emulated devices. They are those of GPUs (kernels/cuda/rows.h), compiled
// for the host; CUB's sort and running sum have twins here.
//
// Each function adds to the stream what the function of that name in kernels/cuda/rows_launch.h
// launches. A device that refuses it is lost (AddKernel in launch.h). Thread-safe.

#include <cstddef>
#include <cstdint>

#include "core/base/stream.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/rows.h"
#include "kernels/rows/rows_optim.h"

namespace psd::emulated {

size_t GroupRowsScratchBytes(size_t size);
// `scratch` has GroupRowsScratchBytes(groups.size) bytes, aligned to 8.
void GroupRows(Stream* stream, const int64_t* ids, const kernels::cuda::DeviceRowGroups& groups,
               void* scratch);

void SumRows(Stream* stream, kernels::cuda::NumberType type,
             const kernels::cuda::DeviceRowGroups& groups, const void* rows, size_t width,
             void* out);

void StepRows(Stream* stream, const kernels::RowSgdOptions& options, int64_t step,
              const kernels::cuda::DeviceRowBatch& batch);
void StepRows(Stream* stream, const kernels::RowAdagradOptions& options, int64_t step,
              const kernels::cuda::DeviceRowBatch& batch);
void StepRows(Stream* stream, const kernels::SparseAdamOptions& options, int64_t step,
              const kernels::cuda::DeviceRowBatch& batch);
void StepRowwise(Stream* stream, const kernels::RowAdagradOptions& options, int64_t step,
                 const kernels::cuda::DeviceRowBatch& batch);

}  // namespace psd::emulated
