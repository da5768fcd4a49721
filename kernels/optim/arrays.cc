#include "kernels/optim/arrays.h"

#include <unistd.h>

namespace psd::kernels {

bool WritesPastCache(size_t bytes) {
  static const size_t cache_bytes = [] {
    const long level2 = sysconf(_SC_LEVEL2_CACHE_SIZE);  // 0 or -1 if the system does not know it
    return level2 > 0 ? static_cast<size_t>(level2) : size_t{1} << 20;
  }();
  return bytes > cache_bytes;
}

}  // namespace psd::kernels
