#include "bench/options.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "core/base/status.h"

namespace psd::bench {
namespace {

// Returns the path of a file that Bazel puts beside this program.
std::string Runfile(absl::string_view path) {
  char self[4096];
  const ssize_t size = readlink("/proc/self/exe", self, sizeof(self));
  const absl::string_view exe(self, size > 0 ? static_cast<size_t>(size) : 0);
  return absl::StrCat(exe, ".runfiles/psd/", path);
}

// Whether `text` is the name, or the beginning of the name and a "*".
bool Names(absl::string_view text, absl::string_view name) {
  return absl::ConsumeSuffix(&text, "*") ? absl::StartsWith(name, text) : name == text;
}

absl::Status SetCase(const std::string& text, Options* options) {
  std::vector<std::string> known;
  const size_t before = options->only.size();
  for (const Case& one : AllCases()) {
    known.push_back(one.name);
    if (Names(text, one.name)) options->only.push_back(one.name);
  }
  if (options->only.size() > before) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("unknown case '", text, "'; known: ", absl::StrJoin(known, ", ")));
}

absl::Status SetDevices(const std::string& text, Options* options) {
  server::DaemonConfig config;
  PSD_RETURN_IF_ERROR(server::FindConfigField("devices")->parse(text, config));
  options->devices = std::move(config.devices);
  return absl::OkStatus();
}

absl::Status SetCarrier(const std::string& text, Options* options) {
  if (text != "grpc" && text != "shm") {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is none; grpc and shm are"));
  }
  options->environment.carrier = text;
  return absl::OkStatus();
}

absl::Status SetFloor(const std::string& text, Options* options) {
  if (text != "tcp" && text != "grpc") {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is none; tcp and grpc are"));
  }
  options->environment.floor = text;
  return absl::OkStatus();
}

absl::Status SetBlocks(const std::string& text, Options* options) {
  int blocks = 0;
  if (!absl::SimpleAtoi(text, &blocks) || blocks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no number from 1"));
  }
  options->blocks = blocks;
  return absl::OkStatus();
}

absl::Status SetEnter(const std::string& text, Options* options) {
  options->environment.network.enter = absl::StrSplit(text, ' ', absl::SkipEmpty());
  return absl::OkStatus();
}

absl::Status SetDelay(const std::string& text, Options* options) {
  absl::Duration& delay = options->environment.network.delay;
  if (!absl::ParseDuration(text, &delay) || delay < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no time, such as 10ms"));
  }
  return absl::OkStatus();
}

// A flag with a value.
struct Flag {
  std::string name;
  std::string value;  // for the help
  std::string help;
  std::function<absl::Status(const std::string& text, Options* options)> set;
};

// Returns a setter that stores the text in the string that `member` returns.
template <typename F>
auto Store(F member) {
  return [member](const std::string& text, Options* options) {
    member(options) = text;
    return absl::OkStatus();
  };
}

const std::vector<Flag>& Flags() {
  static const auto& flags = *new std::vector<Flag>{
      {"--only", "CASE", "only this case, or all that begin so, as in 'gpu_*'; may be repeated",
       SetCase},
      {"--carrier", "C",
       "grpc (default) or shm; the peer uses TCP or its shared memory accordingly", SetCarrier},
      {"--floor", "F",
       "tcp (default) or grpc: what joins the ranks of the floors of groups with --carrier grpc",
       SetFloor},
      {"--blocks", "N", "how many blocks each case runs; the default depends on the case",
       SetBlocks},
      {"--devices", "LIST",
       "for the cases of devices, such as cuda:0,cuda:1 (default: cuda:0); on emu:0 and others\n"
       "                    these cases are tiny, and show only that they work",
       SetDevices},
      {"--daemon", "PATH", "another psd than the one built with the benchmark",
       Store([](Options* o) -> std::string& { return o->environment.daemon; })},
      {"--helper", "PATH", "another bench/helper than the one built with the benchmark",
       Store([](Options* o) -> std::string& { return o->environment.helper; })},
      {"--enter", "COMMAND", "starts servers by this command, such as nsenter", SetEnter},
      {"--host", "IP", "the IPv4 address on which servers listen (default: 127.0.0.1)",
       Store([](Options* o) -> std::string& { return o->environment.network.host; })},
      {"--delay", "TIME", "delays all that is sent between them by as much, for example 10ms",
       SetDelay},
  };
  return flags;
}

}  // namespace

std::string OptionsHelp() {
  std::string help =
      "  --json            one JSON object per case, nothing else on standard output\n";
  for (const Flag& flag : Flags()) {
    const std::string usage = absl::StrCat(flag.name, " ", flag.value);
    absl::StrAppend(&help, "  ", usage, std::string(18 - usage.size(), ' '), flag.help, "\n");
  }
  return help;
}

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments) {
  Options options;
  options.devices.resize(1);  // number 0
  options.devices[0].kind = server::DeviceConfig::Kind::kCuda;
  options.environment.daemon = Runfile("server/daemon/psd");
  options.environment.helper = Runfile("bench/helper");
  options.peer_script = Runfile("bench/peer/torch_rpc_bench.py");
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--json") {
      options.json = true;
      continue;
    }
    if (arguments[i] == "--help" || arguments[i] == "-h") {
      options.help = true;
      continue;
    }
    // Takes --flag=value and --flag value.
    const std::vector<std::string> parts = absl::StrSplit(arguments[i], absl::MaxSplits('=', 1));
    const auto flag = std::find_if(Flags().begin(), Flags().end(),
                                   [&parts](const Flag& one) { return one.name == parts[0]; });
    if (flag == Flags().end() || (parts.size() == 1 && i + 1 == arguments.size())) {
      return absl::InvalidArgumentError(absl::StrCat("unknown or incomplete argument '",
                                                     arguments[i], "'; known:\n", OptionsHelp()));
    }
    const absl::Status set = flag->set(parts.size() == 2 ? parts[1] : arguments[++i], &options);
    PSD_RETURN_IF_ERROR(Annotate(set, flag->name));
  }
  return options;
}

}  // namespace psd::bench
