#include "core/device_kernels/cuda/matmul_kernel.h"

#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/matrix_products.h"

namespace psd::cuda {

absl::Status Matmul(Stream* stream, DType dtype, int64_t m, int64_t n, int64_t k,
                    const ops::Matrix& a, const ops::Matrix& b, bool adds, std::byte* c) {
  auto& own = static_cast<CudaStream&>(*stream);
  return static_cast<CudaDevice&>(own.device())
      .matrix_products()
      .Add(own, {dtype == DType::kF64,
                 m,
                 n,
                 k,
                 {a.data, a.stride, a.transposed},
                 {b.data, b.stride, b.transposed},
                 adds,
                 c});
}

}  // namespace psd::cuda
