#include "core/tensor/ops/cast.h"

#include "core/base/device.h"
#include "core/tensor/ops/check.h"
#include "core/tensor/ops/kernels.h"

namespace psd::ops {

absl::StatusOr<Tensor> Cast(const Tensor& x, DType dtype, Allocator* allocator) {
  PSD_RETURN_IF_ERROR(CheckDefined(kCast.name, x));
  PSD_ASSIGN_OR_RETURN(Tensor dense, x.Contiguous(allocator));
  if (x.dtype() == dtype) return dense;
  PSD_ASSIGN_OR_RETURN(CastKernel* const kernel, KernelFor(kCast, dense));
  PSD_ASSIGN_OR_RETURN(Tensor out, allocator == nullptr
                                       ? Tensor::EmptyBeside(dense, x.shape(), dtype)
                                       : Tensor::Empty(x.shape(), dtype, allocator));
  if (!AreTogether(dense, out)) return MixedDevices(kCast.name, dense.device(), out.device());
  kernel(StreamFor(dense), x.dtype(), dense.address(), dtype, out.mutable_address(),
         static_cast<size_t>(x.NumElements()));
  return out;
}

}  // namespace psd::ops
