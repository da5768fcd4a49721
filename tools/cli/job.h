#pragma once

// The whole job behind one owner's address.

#include <memory>

#include "absl/status/statusor.h"
#include "client/psd.h"
#include "tools/cli/command.h"

namespace psd::cli {

// A worker attached to all owners of the job: those of --owners, or those that the registrar of the
// owner at --address knows. It does not join: trainers do not see it.
// Errors: UNAVAILABLE naming the address; INVALID_ARGUMENT for --owners.
absl::StatusOr<std::unique_ptr<Worker>> AttachToJob(const Options& options);

// Splits "a=b,c=d". Errors: INVALID_ARGUMENT naming the flag, for an empty or repeated name.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParsePairs(
    const std::string& flag, const std::string& text);

}  // namespace psd::cli
