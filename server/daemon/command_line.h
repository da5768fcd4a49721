#pragma once

// The daemon's command line. Every field of the configuration is a flag of the same name; a few
// flags say how to run.

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
  // Fields, as given: name and text.
  std::vector<std::pair<std::string, std::string>> fields;
};

// `arguments` without the program's name. Accepts --flag=value and --flag value; --flag and
// --noflag for flags that are true or false; _ and - are the same in names.
// Errors: INVALID_ARGUMENT with one line per problem; unknown flags with the nearest known one.
absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const char* const> arguments);

// What --help prints.
std::string UsageText();

}  // namespace psd::server
