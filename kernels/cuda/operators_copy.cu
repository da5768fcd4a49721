#include "kernels/cuda/arrays.h"
#include "kernels/cuda/operators_launch-inl.cuh"
#include "kernels/cuda/operators_launch.h"

namespace psd::kernels::cuda {

int LaunchCast(NumberType from, const void* x, NumberType to, void* out, size_t count,
               CUstream_st* stream) {
  const RunOnGpu run(stream);
  WithCast<RawArray>(from, x, to, out, count, MakeRaw(), run);
  return run.error();
}

int LaunchStridedCopy(const void* from, const StridedPlaces& places, size_t item_bytes, void* to,
                      CUstream_st* stream) {
  const RunOnGpu run(stream);
  WithStridedCopy<RawArray>(from, places, item_bytes, to, MakeRaw(), run);
  return run.error();
}

// The size of a table only limits the arrays of emulated devices.
int LaunchGatherRows(const void* table, size_t row_bytes, const int64_t* ids, size_t count,
                     void* rows, CUstream_st* stream) {
  const RunOnGpu run(stream);
  WithRows<true, RawArray>(const_cast<void*>(table), 0, row_bytes, ids, count, rows, MakeRaw(),
                           run);
  return run.error();
}

int LaunchScatterRows(void* table, size_t row_bytes, const int64_t* ids, size_t count,
                      const void* rows, CUstream_st* stream) {
  const RunOnGpu run(stream);
  WithRows<false, RawArray>(table, 0, row_bytes, ids, count, const_cast<void*>(rows), MakeRaw(),
                            run);
  return run.error();
}

}  // namespace psd::kernels::cuda
