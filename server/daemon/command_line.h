#pragma once

// The daemon's command line. Every field of the configuration is a flag of the same name; a few
// more flags control how the daemon runs.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace psd::server {

struct CommandLine {
  bool help = false;
  bool version = false;
  bool check_config = false;
  bool dev = false;
  std::string config_path;
  std::string address_file;
  int ready_fd = -1;
  // The fields of the configuration as they were given: pairs of name and text.
  std::vector<std::pair<std::string, std::string>> fields;
};

// Parses `arguments`, which do not include the program's name. Accepts --flag=value and
// --flag value, and --flag and --noflag for flags that are true or false. In names _ and - are the
// same. Errors: INVALID_ARGUMENT with one line per problem; for an unknown flag the nearest known
// one is named.
absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const char* const> arguments);

// Returns the text that --help prints.
std::string UsageText();

}  // namespace psd::server
