#pragma once

// The whole job behind one owner's address.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/psd.h"
#include "tools/cli/command.h"

namespace psd::cli {

// A worker attached to all owners of the job but those of --leave_out: those of --owners, or those
// that the registrar of the owner at --address knows. It does not join: trainers do not see it.
// Errors: UNAVAILABLE naming every owner that is missing or does not answer at its address, with
// `remedy`, what the command offers besides bringing it back; INVALID_ARGUMENT for --owners and
// --leave_out.
absl::StatusOr<std::unique_ptr<Worker>> AttachToJob(const Options& options,
                                                    absl::string_view remedy);

// The names of --leave_out.
std::vector<std::string> LeftOut(const Options& options);

// Splits "a=b,c=d". Errors: INVALID_ARGUMENT naming the flag, for an empty or repeated name.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParsePairs(
    const std::string& flag, const std::string& text);

}  // namespace psd::cli
