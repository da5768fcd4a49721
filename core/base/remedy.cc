#include "core/base/remedy.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd {

absl::Status WithRemedy(const absl::Status& status, absl::string_view remedy) {
  if (status.ok()) return status;
  ErrorDetail detail = GetDetail(status).value_or(ErrorDetail{});
  detail.remedy = std::string(remedy);
  return WithDetail(absl::Status(status.code(), absl::StrCat(status.message(), "; ", remedy)),
                    detail);
}

}  // namespace psd
