// psctl: starts trainers, inspects running owners, saves and loads jobs, and drops values.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "core/base/host_port.h"
#include "core/base/status.h"
#include "tools/cli/command.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/job.h"

namespace psd::cli {
namespace {

constexpr Command kCommands[] = {
    {"status", "", "Prints the owner's values, optimizers, sessions and memory.", "", 0, 0,
     RunStatus},
    {"list", "[PREFIX]", "Prints the values whose names start with PREFIX, sorted by name.", "", 0,
     1, RunList},
    {"drop", "NAME", "Removes a name. A value that workers still hold lives on.", "", 1, 1,
     RunDrop},
    {"ping", "", "Exits with code 0 if the owner serves, else with 1. For probes.", "", 0, 0,
     RunPing},
    {"check", "FILE", "Checks a configuration file of psd. Prints it in full, or all its problems.",
     "", 1, 1, RunCheck},
    {"save", "DIR", "Saves the values and optimizers of all owners while training goes on.",
     "--owners --name --full_speed --leave_out", 1, 1, RunSave},
    {"load", "DIR", "Loads a save into the owners of the job: DIR, or the latest one in DIR.",
     "--owners --map --spread --only-missing --accept-skew", 1, 1, RunLoad},
    {"run", "-- PROGRAM",
     "Runs a program as the ranks of a job on this machine (-n), with a registrar.",
     "-n --owner --name --restarts --grace", 1, kProgram, RunRanks},
    {"inspect", "FILE", "Prints what a save or a safetensors file holds, and compares checksums.",
     "", 1, 1, RunInspect},
};

void PrintUsage(std::FILE* out) {
  std::fprintf(out,
               "psctl: starts trainers, inspects running owners, saves and loads jobs, and drops "
               "values.\n\n");
  for (const Command& command : Commands()) {
    const std::string call = absl::StrCat(command.name, " ", command.arguments);
    std::fprintf(out, "  psctl %-16s %s\n", call.c_str(), std::string(command.help).c_str());
  }
  std::fprintf(
      out,
      "\n  --address HOST:PORT  the owner (default $PSD_ADDRESS, else 127.0.0.1:7071)\n"
      "  --timeout TIME       how long to wait for an answer (500ms, 5s, 2m; default 5s)\n"
      "  --json               status, list, ping: print JSON for programs\n"
      "  --owners A=HOST:PORT,…  save, load: use these owners instead of the registrar's list\n"
      "  --name NAME          save: the name of the save (default: the present time)\n"
      "  --leave_out A,B      save: leave out the values of these owners\n"
      "  --full_speed         save: work all the time, not a seventh of it; steps wait\n"
      "  --map OLD=NEW,…      load: give the values of the saved owner OLD to NEW\n"
      "  --spread             load: spread all values evenly over all owners by their bytes\n"
      "  --only-missing       load: load only what owners have lost, and keep the rest\n"
      "  --accept-skew        load: with --only-missing, even if other owners have\n"
      "                       taken steps since the save\n"
      "  -n RANKS             run: how many processes (default 1); each has PSD_NAME, PSD_RANK,\n"
      "                       PSD_GROUP_SIZE and PSD_REGISTRAR in its environment\n"
      "  --owner A=HOST:PORT  run: use this owner, may be repeated; PSD_OWNERS names them all. If\n"
      "                       there is none, a registrar without values is started\n"
      "  --name PREFIX        run: rank 2 is called PREFIX2 (default rank)\n"
      "  --restarts N         run: start a rank that dies again, up to N times (default 0: a rank\n"
      "                       that dies ends the job)\n"
      "  --grace TIME         run: the time from SIGTERM to SIGKILL (default 10s)\n"
      "\nExit codes: 0 success; 1 failure; 2 wrong usage. run: that of the first rank that died, "
      "and\n"
      "128 + N if signal N killed it or ended psctl; 126 or 127 if the program cannot be "
      "started.\n");
}

int Refuse(const std::string& problem) {
  std::fprintf(stderr, "psctl: %s; psctl --help shows how\n", problem.c_str());
  return kExitUsage;
}

// Takes "--name=value" or "--name value". Returns false if `arguments[*at]` is another flag.
bool TakeFlag(const std::string& name, const std::vector<std::string>& arguments, size_t* at,
              std::string* value) {
  absl::string_view rest = arguments[*at];
  if (!absl::ConsumePrefix(&rest, name)) return false;
  if (absl::ConsumePrefix(&rest, "=")) {
    *value = std::string(rest);
    return true;
  }
  if (!rest.empty() || *at + 1 == arguments.size()) return false;
  *value = arguments[++*at];
  return true;
}

// Takes one --owner of several.
bool TakeOwner(const std::vector<std::string>& arguments, size_t* at, std::string* owners) {
  std::string owner;
  if (!TakeFlag("--owner", arguments, at, &owner)) return false;
  absl::StrAppend(owners, owners->empty() ? "" : ",", owner);
  return true;
}

// Takes a flag of single commands. Returns false if `arguments[*at]` is not such a flag.
bool TakeOwnFlag(const std::vector<std::string>& arguments, size_t* at, Options* options) {
  const std::string name = arguments[*at].substr(0, arguments[*at].find('='));
  if (arguments[*at] == "--spread") {
    options->spread = true;
  } else if (arguments[*at] == "--full_speed") {
    options->full_speed = true;
  } else if (arguments[*at] == "--only-missing") {
    options->only_missing = true;
  } else if (arguments[*at] == "--accept-skew") {
    options->accept_skew = true;
  } else if (!TakeFlag("--owners", arguments, at, &options->owners) &&
             !TakeFlag("--leave_out", arguments, at, &options->leave_out) &&
             !TakeFlag("--map", arguments, at, &options->map) &&
             !TakeFlag("-n", arguments, at, &options->ranks) &&
             !TakeFlag("--restarts", arguments, at, &options->restarts) &&
             !TakeFlag("--grace", arguments, at, &options->grace) &&
             !TakeOwner(arguments, at, &options->owner) &&
             !TakeFlag("--name", arguments, at, &options->name)) {
    return false;
  }
  options->given.push_back(name);
  return true;
}

int RunCommand(const Options& options, const std::vector<std::string>& words) {
  for (const Command& command : Commands()) {
    if (command.name != words[0]) continue;
    const std::vector<std::string> arguments(words.begin() + 1, words.end());
    if (arguments.size() < command.min_arguments || arguments.size() > command.max_arguments) {
      return Refuse(absl::StrCat("usage: psctl ", command.name, " ", command.arguments));
    }
    const std::vector<std::string> flags = absl::StrSplit(command.flags, ' ');
    for (const std::string& flag : options.given) {
      if (std::find(flags.begin(), flags.end(), flag) == flags.end())
        return Refuse(absl::StrCat("'", flag, "' is no flag of psctl ", command.name));
    }
    const absl::Status status = command.run(options, arguments);
    if (status.ok()) return 0;
    std::fprintf(stderr, "psctl: %s\n", std::string(status.message()).c_str());
    return ExitCodeOf(status);
  }
  return Refuse(absl::StrCat("unknown command '", words[0], "'"));
}

// Whether the first of `words` is a command that takes a program.
bool TakesProgram(const std::vector<std::string>& words) {
  return !words.empty() &&
         std::any_of(Commands().begin(), Commands().end(), [&](const Command& command) {
           return command.name == words[0] && command.max_arguments == kProgram;
         });
}

absl::Status CheckAddresses(const Options& options) {
  PSD_RETURN_IF_ERROR(Annotate(ParseHostPortToDial(options.address).status(),
                               "the address of the owner (--address, or $PSD_ADDRESS)"));
  if (options.owners.empty()) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(const auto owners, ParsePairs("--owners", options.owners));
  for (const auto& [name, address] : owners) {
    PSD_RETURN_IF_ERROR(Annotate(ParseHostPortToDial(address).status(),
                                 absl::StrCat("--owners: the address of ", name)));
  }
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& arguments) {
  Options options;
  options.color = ::isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
  if (const char* address = std::getenv("PSD_ADDRESS"); address != nullptr && *address != '\0')
    options.address = address;
  std::vector<std::string> words;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    // The remaining words are a program and its arguments, which may look like flags.
    if (TakesProgram(words) && (argument == "--" || !absl::StartsWith(argument, "-"))) {
      words.insert(words.end(), arguments.begin() + static_cast<ptrdiff_t>(i + (argument == "--")),
                   arguments.end());
      break;
    }
    std::string timeout;
    if (argument == "--help" || argument == "-h") {
      PrintUsage(stdout);
      return 0;
    }
    if (argument == "--json") {
      options.json = true;
    } else if (TakeFlag("--timeout", arguments, &i, &timeout)) {
      if (!absl::ParseDuration(timeout, &options.timeout) ||
          options.timeout <= absl::ZeroDuration() || options.timeout > absl::Hours(24))
        return Refuse(absl::StrCat("--timeout: expected a time such as 5s, got '", timeout, "'"));
    } else if (!TakeOwnFlag(arguments, &i, &options) &&
               !TakeFlag("--address", arguments, &i, &options.address)) {
      if (absl::StartsWith(argument, TakesProgram(words) ? "-" : "--"))
        return Refuse(absl::StrCat("'", argument, "': unknown flag, or its value is missing"));
      words.push_back(argument);
    }
  }
  if (words.empty()) {
    PrintUsage(stderr);
    return kExitUsage;
  }
  const absl::Status addresses = CheckAddresses(options);
  if (!addresses.ok()) return Refuse(std::string(addresses.message()));
  return RunCommand(options, words);
}

}  // namespace

absl::Span<const Command> Commands() {
  return kCommands;
}

}  // namespace psd::cli

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return psd::cli::Main({argv + 1, argv + argc});
}
