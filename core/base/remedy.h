#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace psd {

// `status` with what its reader can do about it: after "; " in the message, and as the remedy of
// its detail, whose other fields are kept. OK statuses are returned unchanged.
absl::Status WithRemedy(const absl::Status& status, absl::string_view remedy);

}  // namespace psd
