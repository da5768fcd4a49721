#include "core/rref/rref.h"

#include "absl/strings/str_cat.h"

namespace psd::rref {

std::string RRef::ToString() const {
  if (body_ == nullptr) return "RRef(nothing)";
  std::string text = "RRef(";
  if (!name().empty()) absl::StrAppend(&text, name(), ", ");
  absl::StrAppend(&text, value_id().ToString(), " on ", owner());
  if (!is_owner()) absl::StrAppend(&text, ", fork ", body_->fork_id().ToString());
  return text + ")";
}

}  // namespace psd::rref
