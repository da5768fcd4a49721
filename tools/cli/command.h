#pragma once

// psctl's commands, one file each.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace psd::cli {

// The flags of the command line.
struct Options {
  std::string address = "127.0.0.1:7071";
  absl::Duration timeout = absl::Seconds(5);
  bool json = false;
  bool color = false;  // standard output is a terminal, so headings are bold

  // Flags of single commands; see Command::flags.
  std::string owners;     // "owner0=10.0.0.5:7071,…"; empty: the owners that the registrar knows
  std::string name;       // the name of a save
  std::string leave_out;  // "owner1,owner2": owners whose values are not saved
  std::string map;        // "saved owner=present owner,…"
  bool spread = false;
  bool full_speed = false;
  bool only_missing = false;
  bool accept_skew = false;
  std::string ranks;               // run: the number of ranks, as it was given
  std::string restarts;            // run: how often a rank is started again
  std::string grace;               // run: the time from SIGTERM to SIGKILL
  std::string owner;               // run: "owner0=10.0.0.5:7071,…", one or more --owner
  std::vector<std::string> given;  // the names of the flags of single commands that were given
};

// Runs a command, which prints to standard output. Errors: INVALID_ARGUMENT if the command is used
// wrongly; any other code if it failed. ExitCodeOf gives psctl's exit code.
using CommandFunction = absl::Status (*)(const Options& options,
                                         const std::vector<std::string>& arguments);

inline constexpr size_t kProgram = SIZE_MAX;

struct Command {
  absl::string_view name;
  absl::string_view arguments;  // "[PREFIX]"
  absl::string_view help;
  absl::string_view flags;  // "--map --spread": the flags that only some commands take
  size_t min_arguments;
  size_t max_arguments;  // kProgram for a program and its own arguments
  CommandFunction run;
};

absl::Span<const Command> Commands();

absl::Status RunCheck(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunDrop(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunInspect(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunList(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunLoad(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunPing(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunRanks(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunSave(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunStatus(const Options& options, const std::vector<std::string>& arguments);

}  // namespace psd::cli
