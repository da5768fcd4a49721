#include "bench/run_main.h"

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "bench/options.h"
#include "bench/peer.h"
#include "bench/report.h"
#include "bench/runner.h"
#include "bench/workload.h"

namespace psd::bench {
namespace {

// Returns whether all cases succeeded.
bool RunCases(const Options& options, Peer* peer) {
  bool ok = true;
  if (!options.json) std::printf("%s\n", TableHead().c_str());
  for (Case& one : AllCases()) {
    const bool wanted = std::count(options.only.begin(), options.only.end(), one.name) > 0;
    if (!wanted && (!options.only.empty() || (peer != nullptr && !one.has_peer))) continue;
    one.blocks = options.blocks.value_or(one.blocks);
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

void PrintHelp(bool with_peer) {
  std::vector<std::string> names;
  for (const Case& one : AllCases()) names.push_back(one.name);
  std::printf("usage: bazel run -c opt //bench%s -- [flags]\n%scases: %s\n",
              with_peer ? ":compare" : "", OptionsHelp().c_str(),
              absl::StrJoin(names, ", ").c_str());
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
    PrintHelp(with_peer);
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
