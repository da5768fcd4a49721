#pragma once

// Errors are values of type absl::Status with a canonical code. An error may also have a typed
// detail, which names the worker and the object concerned and says what to do.

#include <optional>
#include <string>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd {

struct ErrorDetail {
  std::string worker;         // the worker that failed or could not be reached
  std::string object;         // the parameter, RRef, function, file … concerned
  std::string remedy;         // what the reader can do about the error
  bool fate_unknown = false;  // a mutation was sent, and it is unknown whether it was applied

  friend bool operator==(const ErrorDetail& a, const ErrorDetail& b) {
    return a.worker == b.worker && a.object == b.object && a.remedy == b.remedy &&
           a.fate_unknown == b.fate_unknown;
  }
};

// Returns `status` with `detail` attached, instead of an earlier detail. An OK status is returned
// unchanged.
absl::Status WithDetail(absl::Status status, const ErrorDetail& detail);

// Returns the detail of `status`, or nullopt if it has none or its bytes are damaged.
std::optional<ErrorDetail> GetDetail(const absl::Status& status);

// Returns `status` with "prefix: " before its message and with the same code and detail.
absl::Status Annotate(const absl::Status& status, absl::string_view prefix);

namespace internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              absl::string_view message);
inline const absl::Status& ToStatus(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& ToStatus(const absl::StatusOr<T>& result) {
  return result.status();
}
}  // namespace internal
}  // namespace psd

// Checks a condition that only a bug in psd can break. If it does not hold, prints the file, the
// line and the condition, and aborts the process.
#define PSD_CHECK(condition, message)                                          \
  do {                                                                         \
    if (ABSL_PREDICT_FALSE(!(condition)))                                      \
      ::psd::internal::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)

#define PSD_RETURN_IF_ERROR(expression)                                                       \
  do {                                                                                        \
    auto&& psd_result_ = (expression);                                                        \
    if (ABSL_PREDICT_FALSE(!psd_result_.ok())) return ::psd::internal::ToStatus(psd_result_); \
  } while (false)

// PSD_ASSIGN_OR_RETURN(auto value, Compute()) returns the error of Compute() from the current
// function, or assigns its value. It expands to several statements, so it must not be the body of
// an `if` without braces.
#define PSD_CONCAT_INNER(a, b) a##b
#define PSD_CONCAT(a, b) PSD_CONCAT_INNER(a, b)
#define PSD_ASSIGN_OR_RETURN(declaration, expression) \
  PSD_ASSIGN_OR_RETURN_IMPL(PSD_CONCAT(psd_result_, __LINE__), declaration, expression)
#define PSD_ASSIGN_OR_RETURN_IMPL(result, declaration, expression)         \
  auto result = (expression);                                              \
  if (ABSL_PREDICT_FALSE(!result.ok())) return std::move(result).status(); \
  declaration = *std::move(result)
