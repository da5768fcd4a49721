#include "core/device_kernels/emulated/row_kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/stream.h"
#include "core/device/emulated/device_array.h"
#include "core/device_kernels/emulated/launch.h"
#include "core/optim/rows/row_kernels.h"
#include "kernels/cuda/rows.h"
#include "kernels/optim/arrays.h"
#include "kernels/rows/device_rows.h"
#include "kernels/rows/rows_optim.h"

namespace psd::emulated {
namespace {

namespace cuda = kernels::cuda;
using kernels::DeviceRowBatch;
using kernels::DeviceRowGroups;

// The twin of CUB's stable radix sort of pairs.
struct SortPairs {
  void operator()(size_t /*only*/, const DeviceArray<const int64_t>& ids,
                  const DeviceArray<int64_t>& sorted, const DeviceArray<const uint32_t>& from,
                  const DeviceArray<uint32_t>& to) const {
    std::vector<size_t> order(ids.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return ids[a] < ids[b]; });
    for (size_t i = 0; i < order.size(); ++i) {
      sorted[i] = ids[order[i]];
      to[i] = from[order[i]];
    }
  }
};

// The twin of CUB's inclusive sum, in place.
struct SumUp {
  void operator()(size_t /*only*/, const DeviceArray<uint32_t>& numbers) const {
    for (size_t i = 1; i < numbers.size(); ++i) numbers[i] += numbers[i - 1];
  }
};

struct WriteNoGroups {
  void operator()(size_t /*only*/, const DeviceArray<uint32_t>& begins,
                  const DeviceArray<uint32_t>& count) const {
    begins[0] = 0;
    count[0] = 0;
  }
};

absl::StatusOr<size_t> GroupRowsScratch(Stream* /*stream*/, size_t size, size_t /*rows*/) {
  return size * (sizeof(int64_t) + sizeof(uint32_t));
}

void GroupRows(Stream* stream, const int64_t* ids, size_t /*rows*/, const DeviceRowGroups& groups,
               std::byte* scratch) {
  const size_t size = groups.size;
  if (size == 0) {
    AddKernel(stream, "WriteNoGroups", 1, WriteNoGroups(), ArrayAt(groups.begins, 1),
              ArrayAt(groups.count, 1));
    return;
  }
  auto* const sorted = reinterpret_cast<int64_t*>(scratch);
  auto* const numbers = reinterpret_cast<uint32_t*>(sorted + size);
  cuda::WithNumberPositions<DeviceArray>(numbers, size, kMake, RunOn(stream, "NumberPositions"));
  AddKernel(stream, "SortPairs", 1, SortPairs(), ArrayAt(ids, size), ArrayAt(sorted, size),
            ArrayAt(static_cast<const uint32_t*>(numbers), size), ArrayAt(groups.positions, size));
  cuda::WithMarkGroups<DeviceArray>(sorted, numbers, size, kMake, RunOn(stream, "MarkGroups"));
  AddKernel(stream, "SumUp", 1, SumUp(), ArrayAt(numbers, size));
  cuda::WithWriteGroups<DeviceArray>(sorted, numbers, groups, kMake, RunOn(stream, "WriteGroups"));
}

void SumRows(Stream* stream, kernels::OptimType type, const DeviceRowGroups& groups,
             const void* rows, size_t width, void* out) {
  cuda::WithSumRows<DeviceArray>(type, groups, rows, width, out, kMake,
                                 RunOn(stream, optim::kSumRows.name));
}

// The kernel that has this name, with the signature of its table.
template <typename Options, const optim::StepRowsName<Options>& name>
void Step(Stream* stream, const Options& options, int64_t step, const DeviceRowBatch& batch) {
  cuda::WithStepRows<DeviceArray>(options, step, batch, kMake, RunOn(stream, name.name));
}

void StepRowwise(Stream* stream, const kernels::RowAdagradOptions& options, int64_t step,
                 const DeviceRowBatch& batch) {
  cuda::WithStepRowwise<DeviceArray>(options, step, batch, kMake,
                                     RunBlocksOn(stream, optim::kRowwiseAdagradRows.name));
}

}  // namespace

KernelTable RowKernels() {
  KernelTable table;
  table.Add(optim::kSgdRows, Step<kernels::RowSgdOptions, optim::kSgdRows>);
  table.Add(optim::kAdagradRows, Step<kernels::RowAdagradOptions, optim::kAdagradRows>);
  table.Add(optim::kRowwiseAdagradRows, StepRowwise);
  table.Add(optim::kSparseAdamRows, Step<kernels::SparseAdamOptions, optim::kSparseAdamRows>);
  table.Add(optim::kGroupRows, GroupRows);
  table.Add(optim::kGroupRowsScratch, GroupRowsScratch);
  table.Add(optim::kSumRows, SumRows);
  return table;
}

}  // namespace psd::emulated
