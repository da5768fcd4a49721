#include "core/tensor/device.h"

#include "absl/strings/str_cat.h"

namespace psd {

std::string Device::ToString() const {
  return IsCpu() ? "cpu" : absl::StrCat("cuda:", index);
}

}  // namespace psd
