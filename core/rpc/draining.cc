#include "core/rpc/draining.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::rpc {

absl::Status DrainingError(absl::string_view worker, absl::string_view what) {
  return WithDetail(
      absl::UnavailableError(absl::StrCat("worker ", worker, " is draining (it is about to stop); ",
                                          what, " was not applied")),
      ErrorDetail{std::string(worker), "", "call it again when it is back", false});
}

}  // namespace psd::rpc
