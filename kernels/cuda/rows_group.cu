#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "kernels/cuda/arrays.h"
#include "kernels/cuda/operators_launch-inl.cuh"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/rows_launch.h"

namespace psd::kernels::cuda {
namespace {

constexpr size_t kAlignment = 256;

size_t Aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The bits of ids below `rows`.
int IdBits(size_t rows) {
  int bits = 1;
  while (bits < 63 && rows > size_t{1} << bits) ++bits;
  return bits;
}

// Sorts ids and their positions. The sort is stable, so the positions of an id stay ascending.
// Without `scratch` it only sets `bytes` to the scratch that it needs.
cudaError_t Sort(void* scratch, size_t& bytes, const int64_t* ids, int64_t* sorted,
                 const uint32_t* from, uint32_t* positions, size_t size, size_t rows,
                 CUstream_st* stream) {
  return cub::DeviceRadixSort::SortPairs(scratch, bytes, reinterpret_cast<const uint64_t*>(ids),
                                         reinterpret_cast<uint64_t*>(sorted), from, positions,
                                         static_cast<int64_t>(size), 0, IdBits(rows), stream);
}

// Replaces each number by the sum of all up to it.
cudaError_t SumUp(void* scratch, size_t& bytes, uint32_t* numbers, size_t size,
                  CUstream_st* stream) {
  return cub::DeviceScan::InclusiveSum(scratch, bytes, numbers, numbers, static_cast<int64_t>(size),
                                       stream);
}

// The parts of the scratch.
struct GroupScratch {
  size_t sorted_bytes, numbers_bytes;
  size_t cub_bytes = 0;
  cudaError_t error;  // CUB asks the device for its architecture

  GroupScratch(size_t size, size_t rows)
      : sorted_bytes(Aligned(size * sizeof(int64_t))),
        numbers_bytes(Aligned(size * sizeof(uint32_t))) {
    size_t sort = 0, sum = 0;
    error = Sort(nullptr, sort, nullptr, nullptr, nullptr, nullptr, size, rows, nullptr);
    if (error == cudaSuccess) error = SumUp(nullptr, sum, nullptr, size, nullptr);
    cub_bytes = std::max(sort, sum);
  }
  size_t bytes() const { return sorted_bytes + numbers_bytes + cub_bytes; }
};

}  // namespace

int GetGroupRowsScratch(size_t size, size_t rows, size_t& bytes) {
  const GroupScratch parts(size, rows);
  bytes = parts.bytes();
  return parts.error;
}

int LaunchGroupRows(const int64_t* ids, size_t rows, const DeviceRowGroups& groups, void* scratch,
                    CUstream_st* stream) {
  const size_t size = groups.size;
  if (size == 0) {
    const cudaError_t cleared = cudaMemsetAsync(groups.begins, 0, sizeof(uint32_t), stream);
    if (cleared != cudaSuccess) return cleared;
    return cudaMemsetAsync(groups.count, 0, sizeof(uint32_t), stream);
  }
  GroupScratch parts(size, rows);
  if (parts.error != cudaSuccess) return parts.error;
  auto* const sorted = static_cast<int64_t*>(scratch);
  auto* const numbers =
      reinterpret_cast<uint32_t*>(static_cast<std::byte*>(scratch) + parts.sorted_bytes);
  void* const cub_scratch = reinterpret_cast<std::byte*>(numbers) + parts.numbers_bytes;

  const RunOnGpu number(stream), mark(stream), write(stream);
  WithNumberPositions<RawArray>(numbers, size, MakeRaw(), number);
  if (number.error() != cudaSuccess) return number.error();
  cudaError_t error = Sort(cub_scratch, parts.cub_bytes, ids, sorted, numbers, groups.positions,
                           size, rows, stream);
  if (error != cudaSuccess) return error;
  WithMarkGroups<RawArray>(sorted, numbers, size, MakeRaw(), mark);
  if (mark.error() != cudaSuccess) return mark.error();
  error = SumUp(cub_scratch, parts.cub_bytes, numbers, size, stream);
  if (error != cudaSuccess) return error;
  WithWriteGroups<RawArray>(sorted, numbers, groups, MakeRaw(), write);
  return write.error();
}

}  // namespace psd::kernels::cuda
