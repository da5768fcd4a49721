#include "core/checkpoint/checkpoint_index.h"

#include "absl/strings/str_cat.h"

namespace psd::checkpoint {

absl::Status CheckKind(const SavedValue& value) {
  if (value.kind != ValueKind::kTensor && !IsFloating(value.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", value.name, "' is a ", value.kind == ValueKind::kRows ? "table of rows" : "parameter",
        " of ", DTypeName(value.dtype), ", whose elements are not floating"));
  }
  if (value.kind == ValueKind::kRows &&
      (value.shape.rank() != 2 || value.shape.NumElements() == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", value.name, "' is a table of rows of the shape ", value.shape.ToString(),
                     "; it needs [rows, width], and not empty"));
  }
  return absl::OkStatus();
}

std::string StateTensorName(size_t index, absl::string_view slot) {
  return absl::StrCat("state.", index, ".", slot);
}

}  // namespace psd::checkpoint
