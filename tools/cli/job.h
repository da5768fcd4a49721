#pragma once

// Finds the whole job from one owner's address.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/psd.h"
#include "tools/cli/command.h"

namespace psd::cli {

// Returns a worker that is attached to all owners of the job except those of --leave_out. The
// owners are those of --owners, or those that the registrar of the owner at --address knows. The
// worker does not join the job, so trainers do not see it. Errors:
// - UNAVAILABLE naming every owner that is missing or does not answer at its address. The text ends
//   with `remedy`, which says what the user can do instead of bringing the owner back.
// - FAILED_PRECONDITION if --owners names a registrar without values, or if there is one at
//   --address and it knows no owner.
// - INVALID_ARGUMENT for a wrong --owners or --leave_out.
absl::StatusOr<std::unique_ptr<Worker>> AttachToJob(const Options& options,
                                                    absl::string_view remedy);

// Returns the names in --leave_out.
std::vector<std::string> LeftOut(const Options& options);

// Splits "a=b,c=d". Errors: INVALID_ARGUMENT, which names the flag, for an empty or repeated name.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParsePairs(
    const std::string& flag, const std::string& text);

}  // namespace psd::cli
