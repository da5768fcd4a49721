#include "server/daemon/command_line.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "core/base/nearest_name.h"
#include "server/daemon/config.h"

namespace psd::server {
namespace {

// A flag that is not a field of the configuration.
struct RunFlag {
  absl::string_view name;
  absl::string_view value;  // its value in the help text; empty for a flag that is true or false
  absl::string_view help;
  absl::Status (*parse)(absl::string_view text, CommandLine& line);
};

template <bool CommandLine::*kMember>
absl::Status ParseSwitch(absl::string_view text, CommandLine& line) {
  if (text != "true" && text != "false")
    return absl::InvalidArgumentError("expected true or false");
  line.*kMember = text == "true";
  return absl::OkStatus();
}

template <std::string CommandLine::*kMember>
absl::Status ParsePath(absl::string_view text, CommandLine& line) {
  if (text.empty()) return absl::InvalidArgumentError("expected the path of a file");
  line.*kMember = std::string(text);
  return absl::OkStatus();
}

absl::Status ParseReadyFd(absl::string_view text, CommandLine& line) {
  constexpr int kMost = 1'000'000;
  if (!absl::SimpleAtoi(text, &line.ready_fd) || line.ready_fd < 0 || line.ready_fd > kMost)
    return absl::InvalidArgumentError("expected the number of an open file descriptor");
  return absl::OkStatus();
}

constexpr RunFlag kRunFlags[] = {
    {"config", "FILE", "Read the configuration from this YAML file. Flags take precedence.",
     ParsePath<&CommandLine::config_path>},
    {"dev", "",
     "Try things out: run owner0 at 127.0.0.1:7071, or at any free port if that one is taken.",
     ParseSwitch<&CommandLine::dev>},
    {"check_config", "",
     "Print the configuration that would be used, or all its problems, and exit.",
     ParseSwitch<&CommandLine::check_config>},
    {"address_file", "FILE",
     "When ready, write the address to this file, which is replaced as a whole.",
     ParsePath<&CommandLine::address_file>},
    {"ready_fd", "N",
     "When ready, write the address and a newline to this open file descriptor and close it.",
     ParseReadyFd},
    {"version", "", "Print the version and exit.", ParseSwitch<&CommandLine::version>},
    {"help", "", "Print this and exit.", ParseSwitch<&CommandLine::help>},
};

const RunFlag* FindRunFlag(absl::string_view name) {
  for (const RunFlag& flag : kRunFlags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

bool IsKnown(absl::string_view name) {
  return FindRunFlag(name) != nullptr || FindConfigField(name) != nullptr;
}

// Returns true for flags that may be given without a value.
bool IsSwitch(absl::string_view name) {
  const RunFlag* flag = FindRunFlag(name);
  if (flag != nullptr) return flag->value.empty();
  const ConfigField* field = FindConfigField(name);
  return field != nullptr && field->type == "bool";
}

std::string UnknownFlag(absl::string_view name) {
  NearestNameFinder finder(name);
  for (const RunFlag& flag : kRunFlags) finder.Consider(flag.name);
  for (const ConfigField& field : ConfigFields()) finder.Consider(field.name);
  const std::string hint =
      finder.nearest().empty() ? "" : absl::StrCat("; did you mean --", finder.nearest(), "?");
  return absl::StrCat("--", name, ": unknown flag", hint);
}

class Parser {
 public:
  explicit Parser(absl::Span<const char* const> arguments) : arguments_(arguments) {}

  absl::StatusOr<CommandLine> Parse() {
    while (next_ < arguments_.size()) ParseOne(arguments_[next_++]);
    if (problems_.empty()) return line_;
    return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
  }

 private:
  void ParseOne(absl::string_view argument) {
    absl::string_view name = argument == "-h" ? "--help" : argument;
    if (!absl::ConsumePrefix(&name, "--") || name.empty()) {
      problems_.push_back(absl::StrCat(
          "'", argument, "': unexpected argument; everything is given as --flag value"));
      return;
    }
    const size_t equals = name.find('=');
    const bool has_value = equals != absl::string_view::npos;
    std::string flag = absl::StrReplaceAll(name.substr(0, equals), {{"-", "_"}});
    if (has_value) return Take(flag, std::string(name.substr(equals + 1)));
    if (IsSwitch(flag)) return Take(flag, "true");
    const std::string positive(absl::StripPrefix(flag, "no"));
    if (positive != flag && IsSwitch(positive)) return Take(positive, "false");
    if (!IsKnown(flag)) return problems_.push_back(UnknownFlag(flag));
    if (next_ == arguments_.size())
      return problems_.push_back(absl::StrCat("--", flag, ": the value is missing"));
    Take(flag, arguments_[next_++]);
  }

  void Take(const std::string& flag, const std::string& value) {
    if (!IsKnown(flag)) return problems_.push_back(UnknownFlag(flag));
    const RunFlag* run_flag = FindRunFlag(flag);
    if (run_flag == nullptr) return static_cast<void>(line_.fields.emplace_back(flag, value));
    const absl::Status status = run_flag->parse(value, line_);
    if (!status.ok()) {
      problems_.push_back(absl::StrCat("--", flag, ": ", status.message(), ", got '", value, "'"));
    }
  }

  const absl::Span<const char* const> arguments_;
  size_t next_ = 0;
  CommandLine line_;
  std::vector<std::string> problems_;
};

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const char* const> arguments) {
  return Parser(arguments).Parse();
}

std::string UsageText() {
  std::string text =
      "psd: a daemon that holds parameters for trainers (an owner).\n\n"
      "  psd --dev                  runs owner0 on loopback without a configuration\n"
      "  psd --config FILE          runs the owner that the file describes\n"
      "  psd --name owner0 ...      runs the owner that the flags describe\n"
      "  psd --registrar_only ...   runs a registrar that hosts no values\n\n"
      "How to run:\n";
  for (const RunFlag& flag : kRunFlags) {
    const std::string name =
        absl::StrCat("--", flag.name, flag.value.empty() ? "" : " ", flag.value);
    absl::StrAppendFormat(&text, "  %s\n        %s\n", name, flag.help);
  }
  absl::StrAppend(&text, "\nThe configuration (each also a key of the file):\n");
  for (const ConfigField& field : ConfigFields()) {
    const std::string standard = field.print(DaemonConfig{});
    absl::StrAppendFormat(&text, "  --%s %s\n        %s\n        %s; default: %s\n", field.name,
                          absl::AsciiStrToUpper(field.type), field.help, field.range,
                          standard.empty() ? "none" : standard);
  }
  absl::StrAppend(&text,
                  "\nExit codes:\n"
                  "  0  stopped in order, or printed what was asked for\n"
                  "  1  failed while starting or running\n"
                  "  2  wrong flags or configuration; nothing was started\n"
                  "  3  cannot listen at the address\n"
                  "  4  a second signal to stop cut off calls that were running\n"
                  "  5  the system refuses threads or memory; the last line names the limits\n"
                  "  6  the stop took longer than drain_timeout and 10 s and was cut off\n");
  return text;
}

}  // namespace psd::server
