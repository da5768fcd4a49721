#pragma once

// The names and signatures of the kernels of rows on devices. Each device has a table with the
// kernels that it offers. The CPU has none of them: it steps rows by RowOptimizer::Apply, which
// leaves the new rows to its caller, because readers there must see each row whole.
//
// Kernels add work to the stream, which is one of the device, and cannot fail: when work cannot be
// added or done, the device is lost, which the next event of the stream reports. Addresses are in
// the memory of the device. Thread-safe.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/device.h"
#include "core/base/kernel_table.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "kernels/optim/arrays.h"
#include "kernels/rows/device_rows.h"
#include "kernels/rows/rows_optim.h"

namespace psd::optim {

// Steps the rows of the batch in place. `step` counts from 1. Does nothing if there is no room for
// a group.
template <typename Options>
using StepRowsKernel = void(Stream* stream, const Options& options, int64_t step,
                            const kernels::DeviceRowBatch& batch);
template <typename Options>
using StepRowsName = KernelName<StepRowsKernel<Options>>;

inline constexpr StepRowsName<kernels::RowSgdOptions> kSgdRows{"SgdRows", 96};
inline constexpr StepRowsName<kernels::RowAdagradOptions> kAdagradRows{"AdagradRows", 97};
inline constexpr StepRowsName<kernels::RowAdagradOptions> kRowwiseAdagradRows{"RowwiseAdagradRows",
                                                                              98};
inline constexpr StepRowsName<kernels::SparseAdamOptions> kSparseAdamRows{"SparseAdamRows", 99};

// Groups the positions 0 to groups.size - 1 by their ids, which are below `rows`, as
// kernels::GroupRows does. `scratch` is the start of a block that has as many bytes as
// GroupRowsScratch returns. Requires: groups.room is not less than the number of different ids.
using GroupRowsKernel = void(Stream* stream, const int64_t* ids, size_t rows,
                             const kernels::DeviceRowGroups& groups, std::byte* scratch);
inline constexpr KernelName<GroupRowsKernel> kGroupRows{"GroupRows", 100};
// Returns how many bytes of scratch GroupRows needs for `size` positions. Adds no work, so the
// device goes on if it fails. Errors: those that the device gives for work that it refuses.
using GroupRowsScratchKernel = absl::StatusOr<size_t>(Stream* stream, size_t size, size_t rows);
inline constexpr KernelName<GroupRowsScratchKernel> kGroupRowsScratch{"GroupRowsScratch", 101};

// Sets row k of `out`, which has groups.room packed rows, to the sum of the packed `rows` at the
// positions of group k. Rows behind the last group stay as they are.
using SumRowsKernel = void(Stream* stream, kernels::OptimType type,
                           const kernels::DeviceRowGroups& groups, const void* rows, size_t width,
                           void* out);
inline constexpr KernelName<SumRowsKernel> kSumRows{"SumRows", 102};

// Checks that `device` can group rows and step them by the kernel called `name`.
// Errors: UNIMPLEMENTED naming the kernel and the device.
template <typename Options>
absl::Status CheckRowKernels(const StepRowsName<Options>& name, const Device& device) {
  PSD_RETURN_IF_ERROR(KernelOf(kGroupRows, device).status());
  PSD_RETURN_IF_ERROR(KernelOf(kGroupRowsScratch, device).status());
  return KernelOf(name, device).status();
}

// Runs the kernel called `name` of the stream's device. Requires: the device has it.
template <typename Options>
void AddRowStep(const StepRowsName<Options>& name, Stream& stream, const Options& options,
                int64_t step, const kernels::DeviceRowBatch& batch) {
  stream.device().kernels().Find(name)(&stream, options, step, batch);
}

}  // namespace psd::optim
