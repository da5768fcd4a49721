// Stands for nccl_collectives.cc in builds without the header of NCCL.
#include "core/device/cuda/nccl_collectives.h"

namespace psd::cuda {

std::unique_ptr<DeviceCollectives> NewNcclCollectives(CudaDevice& /*device*/,
                                                      std::string /*file*/) {
  return nullptr;
}

}  // namespace psd::cuda
