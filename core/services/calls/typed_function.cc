#include "core/services/calls/typed_function.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::services {
namespace {

absl::Status Wanted(const char* what, const store::Value& value) {
  return absl::InvalidArgumentError(absl::StrCat("is ", value.KindName(), ", not ", what));
}

template <typename T>
absl::StatusOr<T> Read(const char* what, const store::Value& value) {
  const T* held = value.As<T>();
  if (held == nullptr) return Wanted(what, value);
  return *held;
}

}  // namespace

template <>
absl::StatusOr<bool> ReadValue(const store::Value& value) {
  return Read<bool>("a bool", value);
}
template <>
absl::StatusOr<int64_t> ReadValue(const store::Value& value) {
  return Read<int64_t>("an int", value);
}
template <>
absl::StatusOr<double> ReadValue(const store::Value& value) {
  if (const auto* whole = value.As<int64_t>()) return static_cast<double>(*whole);
  return Read<double>("a number", value);
}
template <>
absl::StatusOr<std::string> ReadValue(const store::Value& value) {
  return Read<std::string>("a string", value);
}
template <>
absl::StatusOr<Variable> ReadValue(const store::Value& value) {
  return Read<Variable>("a tensor", value);
}
template <>
absl::StatusOr<Tensor> ReadValue(const store::Value& value) {
  PSD_ASSIGN_OR_RETURN(const Variable variable, ReadValue<Variable>(value));
  if (!variable.ok()) return variable.status();
  return variable.tensor();
}
template <>
absl::StatusOr<rref::RRef> ReadValue(const store::Value& value) {
  rref::RRef rref = rref::RRef::FromValue(value);
  if (!rref.valid()) return Wanted("a reference", value);
  return rref;
}

namespace internal {

absl::Status WrongCount(size_t wanted, size_t given) {
  return absl::InvalidArgumentError(
      absl::StrCat("takes ", wanted, " arguments and was given ", given));
}

absl::Status WrongArgument(size_t position, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat("argument ", position, " ", why.message()));
}

}  // namespace internal
}  // namespace psd::services
