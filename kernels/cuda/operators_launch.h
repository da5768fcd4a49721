#pragma once

// Launches operators on a GPU. Only programs that are built with CUDA link these functions.
// Thread-safe.
//
// All addresses of elements are in the memory of the device, and aligned to their type. The
// operators are documented where kernels/cuda/operators.h and softmax.h say. Each call adds at most
// one launch to the stream, and none if there is no element to compute. It returns 0 or the
// cudaError_t of the launch; errors of the kernel itself are reported by the stream.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/operators.h"
#include "kernels/elementwise.h"

struct CUstream_st;  // *cudaStream_t

namespace psd::kernels::cuda {

// Requires: the places have the same extents; kDiv takes floating-point numbers only.
int LaunchBinary(BinaryOp op, NumberType type, const void* a, const StridedPlaces& a_places,
                 const void* b, const StridedPlaces& b_places, void* out, CUstream_st* stream);
int LaunchUnary(UnaryOp op, NumberType type, const void* x, void* out, size_t count,
                CUstream_st* stream);
int LaunchUnaryGradient(UnaryGradientOp op, NumberType type, const void* y, const void* g,
                        void* out, size_t count, CUstream_st* stream);
// One thread computes each result, so few results of many elements take long.
int LaunchReduction(Reduction reduction, NumberType type, const void* x, const ReducedAxis& axis,
                    void* out, CUstream_st* stream);
int LaunchCast(NumberType from, const void* x, NumberType to, void* out, size_t count,
               CUstream_st* stream);
int LaunchStridedCopy(const void* from, const StridedPlaces& places, size_t item_bytes, void* to,
                      CUstream_st* stream);
int LaunchGatherRows(const void* table, size_t row_bytes, const int64_t* ids, size_t count,
                     void* rows, CUstream_st* stream);
int LaunchScatterRows(void* table, size_t row_bytes, const int64_t* ids, size_t count,
                      const void* rows, CUstream_st* stream);
// Rows of `cols` elements, as in kernels/softmax.h. Requires: cols > 0 unless rows == 0.
int LaunchSoftmax(NumberType type, const void* x, size_t rows, size_t cols, void* out,
                  CUstream_st* stream);
int LaunchLogSoftmax(NumberType type, const void* x, size_t rows, size_t cols, void* out,
                     CUstream_st* stream);
int LaunchSoftmaxGradient(NumberType type, const void* y, const void* g, size_t rows, size_t cols,
                          void* out, CUstream_st* stream);
int LaunchLogSoftmaxGradient(NumberType type, const void* y, const void* g, size_t rows,
                             size_t cols, void* out, CUstream_st* stream);
// Sets the element at `out`, to NaN if there are no rows. One block computes it.
int LaunchCrossEntropy(NumberType type, const void* y, const int64_t* labels, size_t rows,
                       size_t cols, void* out, CUstream_st* stream);
// `g` is the address of the gradient of the mean.
int LaunchCrossEntropyGradient(NumberType type, const void* y, const int64_t* labels, const void* g,
                               size_t rows, size_t cols, void* out, CUstream_st* stream);
int LaunchUniform(NumberType type, uint64_t seed, double low, double high, void* out, size_t count,
                  CUstream_st* stream);
int LaunchNormal(NumberType type, uint64_t seed, double mean, double deviation, void* out,
                 size_t count, CUstream_st* stream);

}  // namespace psd::kernels::cuda
