#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace psd {

// Returns `status` with `remedy`, the advice what to do about the error, appended to the message
// after "; " and set in its ErrorDetail, whose other fields are kept. An OK status is returned
// unchanged.
absl::Status WithRemedy(const absl::Status& status, absl::string_view remedy);

}  // namespace psd
