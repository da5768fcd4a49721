#include "bench/run_main.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "bench/peer.h"
#include "bench/report.h"
#include "bench/runner.h"
#include "bench/workload.h"
#include "core/base/status.h"

namespace psd::bench {
namespace {

struct Options {
  bool json = false;
  bool help = false;
  std::vector<std::string> only;
  Environment environment;
  std::string peer_script;
};

constexpr char kUsage[] =
    "  --json         one JSON object per case, nothing else on standard output\n"
    "  --only CASE    only this case; may be repeated\n"
    "  --carrier C    grpc (default) or shm; the peer uses TCP or its shared memory accordingly\n"
    "  --daemon PATH  another psd than the one built with the benchmark\n";

// Returns the path of a file that Bazel puts beside this program.
std::string Runfile(absl::string_view path) {
  char self[4096];
  const ssize_t size = readlink("/proc/self/exe", self, sizeof(self));
  const absl::string_view exe(self, size > 0 ? static_cast<size_t>(size) : 0);
  return absl::StrCat(exe, ".runfiles/psd/", path);
}

std::vector<std::string> CaseNames() {
  std::vector<std::string> names;
  for (const Case& one : AllCases()) names.push_back(one.name);
  return names;
}

absl::Status CheckOnly(const std::vector<std::string>& only) {
  const std::vector<std::string> known = CaseNames();
  for (const std::string& name : only) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--only: unknown case '", name, "'; known: ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

absl::StatusOr<Options> ParseOptions(std::vector<std::string> arguments) {
  Options options;
  options.environment.daemon = Runfile("server/daemon/psd");
  options.environment.helper = Runfile("bench/helper");
  options.peer_script = Runfile("bench/peer/torch_rpc_bench.py");
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view argument = arguments[i];
    // Takes --flag=value and --flag value.
    const auto value = [&](absl::string_view flag, std::string* to) {
      if (argument == flag && i + 1 < arguments.size()) {
        *to = arguments[++i];
        return true;
      }
      if (!absl::ConsumePrefix(&argument, absl::StrCat(flag, "="))) return false;
      *to = std::string(argument);
      return true;
    };
    std::string text;
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--help" || argument == "-h") {
      options.help = true;
    } else if (value("--only", &text)) {
      options.only.push_back(text);
    } else if (value("--carrier", &text)) {
      if (text != "grpc" && text != "shm") {
        return absl::InvalidArgumentError(
            absl::StrCat("--carrier: '", text, "' is none; grpc and shm are"));
      }
      options.environment.carrier = text;
    } else if (!value("--daemon", &options.environment.daemon)) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown or incomplete argument '", arguments[i], "'; known:\n", kUsage));
    }
  }
  PSD_RETURN_IF_ERROR(CheckOnly(options.only));
  return options;
}

// Returns whether all cases succeeded.
bool RunCases(const Options& options, Peer* peer) {
  bool ok = true;
  if (!options.json) std::printf("%s\n", TableHead().c_str());
  for (const Case& one : AllCases()) {
    const bool wanted = std::count(options.only.begin(), options.only.end(), one.name) > 0;
    if (!wanted && (!options.only.empty() || (peer != nullptr && !one.has_peer))) continue;
    const absl::StatusOr<Row> row = RunCase(one, options.environment, peer);
    if (row.ok()) {
      std::printf("%s\n", (options.json ? RowAsJson(*row) : RowAsText(*row)).c_str());
      std::fflush(stdout);
    } else {
      std::fprintf(stderr, "%s: %s\n", one.name.c_str(), row.status().ToString().c_str());
      ok = false;
    }
  }
  return ok;
}

}  // namespace

int RunMain(int argc, char** argv, bool with_peer) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // Cases in this process stand for an owner, whose malloc keeps freed memory
  // (server/daemon/daemon.cc).
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  const auto options = ParseOptions(std::vector<std::string>(argv + 1, argv + argc));
  if (!options.ok()) {
    std::fprintf(stderr, "bench: %s\n", std::string(options.status().message()).c_str());
    return 2;
  }
  if (options->help) {
    std::printf("usage: bazel run -c opt //bench%s -- [flags]\n%scases: %s\n",
                with_peer ? ":compare" : "", kUsage, absl::StrJoin(CaseNames(), ", ").c_str());
    return 0;
  }
  std::unique_ptr<Peer> peer;
  if (with_peer) {
    auto started =
        Peer::Start(options->peer_script, options->environment.carrier == "shm" ? "shm" : "tcp");
    if (!started.ok()) {
      std::fprintf(stderr, "compare: %s\n", std::string(started.status().message()).c_str());
      return 1;
    }
    peer = *std::move(started);
    std::fprintf(stderr, "peer: %s\n", peer->description().c_str());
  }
  return RunCases(*options, peer.get()) ? 0 : 1;
}

}  // namespace psd::bench
