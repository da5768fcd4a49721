#include "core/base/ids.h"

#include <random>

#include "absl/strings/str_cat.h"

namespace psd {

Incarnation NewIncarnation() {
  std::random_device device;
  Incarnation value = 0;
  while (value == 0) value = (uint64_t{device()} << 32) | device();
  return value;
}

std::string IncarnationToString(Incarnation incarnation) {
  return absl::StrCat(absl::Hex(incarnation, absl::kZeroPad16));
}

std::string GlobalId::ToString() const {
  return absl::StrCat(IncarnationToString(incarnation), "/", counter);
}

}  // namespace psd
