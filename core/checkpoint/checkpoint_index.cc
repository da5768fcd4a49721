#include "core/checkpoint/checkpoint_index.h"

#include "absl/strings/str_cat.h"

namespace psd::checkpoint {

std::string StateTensorName(size_t index, absl::string_view slot) {
  return absl::StrCat("state.", index, ".", slot);
}

}  // namespace psd::checkpoint
