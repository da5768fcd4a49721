#pragma once

// The command line of the benchmark programs.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/workload.h"
#include "server/daemon/config.h"

namespace psd::bench {

struct Options {
  bool json = false;
  bool help = false;
  std::vector<std::string> only;              // the names of cases that exist; empty: all cases
  std::optional<int> blocks;                  // replaces the number of blocks of each case
  Environment environment;                    // its devices are not opened yet
  std::vector<server::DeviceConfig> devices;  // for the cases of devices
  std::string peer_script;
};

// Returns the explanation of the flags, one per line.
std::string OptionsHelp();

// Paths that are not given are those of the files that Bazel puts beside this program.
// Errors: INVALID_ARGUMENT, which names the argument and the remedy.
absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments);

}  // namespace psd::bench
