#include "core/rref/rref.h"

#include <memory>

#include "absl/strings/str_cat.h"

namespace psd::rref {

RRef::operator store::Value() const {
  return store::Value(std::shared_ptr<const store::RemoteReference>(body_));
}

RRef RRef::FromValue(const store::Value& value) {
  const auto* reference = value.As<std::shared_ptr<const store::RemoteReference>>();
  if (reference == nullptr) return RRef();
  return RRef(std::static_pointer_cast<const Body>(*reference));
}

std::string RRef::ToString() const {
  if (body_ == nullptr) return "RRef(nothing)";
  std::string text = "RRef(";
  if (!name().empty()) absl::StrAppend(&text, name(), ", ");
  absl::StrAppend(&text, value_id().ToString(), " on ", owner());
  if (!is_owner()) absl::StrAppend(&text, ", fork ", body_->fork_id().ToString());
  return text + ")";
}

}  // namespace psd::rref
