#pragma once

// psctl's commands, one file each.

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
  bool color = false;  // headings are bold: standard output is a terminal

  // Flags of single commands, see Command::flags.
  std::string owners;  // "owner0=10.0.0.5:7071,owner1=…"; empty: those that the registrar knows
  std::string name;    // of a save
  std::string leave_out;  // "owner1,owner2": not saved
  std::string map;        // "saved owner=owner now,…"
  bool spread = false;
  bool full_speed = false;
  bool only_missing = false;
  bool accept_skew = false;
  std::vector<std::string> given;  // those of the above that were given
};

// Runs a command, which prints to standard output. Errors: INVALID_ARGUMENT if the command is used
// wrongly; any other code if it failed.
using CommandFunction = absl::Status (*)(const Options& options,
                                         const std::vector<std::string>& arguments);

struct Command {
  absl::string_view name;
  absl::string_view arguments;  // "[PREFIX]"
  absl::string_view help;
  absl::string_view flags;  // "--map --spread": its own, beside those that all take
  size_t min_arguments;
  size_t max_arguments;
  CommandFunction run;
};

absl::Span<const Command> Commands();

absl::Status RunCheck(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunDrop(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunInspect(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunList(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunLoad(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunPing(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunSave(const Options& options, const std::vector<std::string>& arguments);
absl::Status RunStatus(const Options& options, const std::vector<std::string>& arguments);

}  // namespace psd::cli
