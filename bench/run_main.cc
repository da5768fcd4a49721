#include "bench/run_main.h"

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "bench/gpu/devices.h"
#include "bench/options.h"
#include "bench/peer.h"
#include "bench/report.h"
#include "bench/runner.h"
#include "bench/workload.h"
#include "core/base/status.h"

namespace psd::bench {
namespace {

// The peers, one for each transport. Each is started when it is first needed.
class Peers {
 public:
  explicit Peers(const Options& options) : options_(options) {}

  absl::StatusOr<Peer*> For(const Case& one) {
    const bool shm = options_.environment.carrier == "shm" && !one.peer_needs_tcp;
    std::unique_ptr<Peer>& peer = shm ? shm_ : tcp_;
    if (peer == nullptr) {
      PSD_ASSIGN_OR_RETURN(peer, Peer::Start(options_.peer_script, shm ? "shm" : "tcp"));
      std::fprintf(stderr, "peer: %s\n", peer->description().c_str());
    }
    return peer.get();
  }

 private:
  const Options& options_;
  std::unique_ptr<Peer> shm_;
  std::unique_ptr<Peer> tcp_;
};

// Returns whether the devices that the case needs are there. Otherwise says why it is not run.
bool HasDevices(const Case& one, GpuDevices& devices, Environment& environment) {
  const absl::Status ready = devices.Provide(one.devices, environment);
  if (ready.ok()) return true;
  std::fprintf(stderr, "%s: not run: %s\n", one.name.c_str(), std::string(ready.message()).c_str());
  return false;
}

// Returns whether all cases that were run succeeded. Compares with no peer if `peers` is null.
bool RunCases(const Options& options, Peers* peers) {
  bool ok = true;
  GpuDevices devices(options.devices);
  Environment environment = options.environment;
  if (!options.json) std::printf("%s\n", TableHead().c_str());
  for (Case& one : AllCases()) {
    const bool wanted = std::count(options.only.begin(), options.only.end(), one.name) > 0;
    if (!wanted && (!options.only.empty() || (peers != nullptr && !one.has_peer))) continue;
    if (!HasDevices(one, devices, environment)) continue;
    one.blocks = options.blocks.value_or(one.blocks);
    const absl::StatusOr<Peer*> peer = peers == nullptr ? nullptr : peers->For(one);
    if (!peer.ok()) {
      std::fprintf(stderr, "compare: %s\n", std::string(peer.status().message()).c_str());
      return false;
    }
    const absl::StatusOr<Row> row = RunCase(one, environment, *peer);
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
  Peers peers(*options);
  return RunCases(*options, with_peer ? &peers : nullptr) ? 0 : 1;
}

}  // namespace psd::bench
