#pragma once

// Checks that no part of a job's named optimizers is missing, from what the owners report. Pure.

#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/services/checkpoint/checkpoint_types.h"

namespace psd {

using ContentsByOwner = std::map<std::string, services::OwnerContents>;

// Returns one report for each owner, saying which part of the optimizer `name` it has.
std::vector<optim::PartReport> ReportsOf(const std::string& name, const ContentsByOwner& contents);

// Errors: FAILED_PRECONDITION naming the first optimizer and owner where a part is missing (see
// optim::CheckWhole). A part on an owner that is not in `contents` is no error if `may_miss`
// returns true for that owner.
absl::Status CheckWholeModel(const ContentsByOwner& contents,
                             absl::FunctionRef<bool(const std::string& owner)> may_miss);

}  // namespace psd
