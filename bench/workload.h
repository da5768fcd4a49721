#pragma once

// A benchmark case: operations of psd, and a floor, which is the cost of the same work on the bare
// machine.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/device.h"

namespace psd::bench {

// The network between a benchmark and its servers.
struct Network {
  // The command that starts a program on the host of the servers, for example "nsenter" with its
  // arguments. Empty: they run on this host.
  std::vector<std::string> enter;
  std::string host = "127.0.0.1";  // an IPv4 address of that host, on which servers listen
  absl::Duration delay;            // added to every byte, each way, by a proxy on this host
};

// The programs that cases start, and what lies between them.
struct Environment {
  std::string daemon;            // psd
  std::string helper;            // //bench:helper
  std::string carrier = "grpc";  // or "shm": how a job's processes exchange messages
  // How the ranks of a floor are connected if they do not share memory: by "tcp" or by "grpc".
  std::string floor = "tcp";
  Network network;
  // The devices of the cases that need some. Shared with the workers that these cases start.
  std::vector<std::shared_ptr<Device>> devices;
};

// The unit in which a cost (seconds per operation, or bytes of memory) is shown: as cost * factor,
// or for a rate as factor / cost.
struct Unit {
  std::string name;
  double factor = 1;
  bool rate = false;
  double Show(double cost) const { return rate ? factor / cost : cost * factor; }
};

// Confined to one thread. A workload is created, started, then run in blocks.
class Workload {
 public:
  virtual ~Workload() = default;

  // Starts the processes of the case, and warms up.
  virtual absl::Status Start(const Environment& environment) = 0;

  // Runs one block of operations. Returns the cost of each, or the mean cost if they overlap.
  virtual absl::StatusOr<std::vector<double>> RunPsd() = 0;
  // Runs one block of the floor. Returns its median cost, or nullopt if the case has no floor.
  virtual absl::StatusOr<std::optional<double>> RunFloor() = 0;
};

struct Case {
  std::string name;   // for example "call_empty", as --only takes it
  bool sends = true;  // false: nothing is sent, and no carrier is shown
  Unit unit;
  bool latency = false;  // if true, the 99th percentile is shown too
  bool has_peer = true;  // whether the peer has the same case
  // Whether the peer has no shared memory for this case. Then it uses TCP, whatever psd uses.
  bool peer_needs_tcp = false;
  size_t devices = 0;  // how many Environment::devices it needs; it is not run if there are fewer
  int blocks = 7;
  std::function<std::unique_ptr<Workload>()> make;
};

// Returns all cases in the order in which they run.
std::vector<Case> AllCases();

}  // namespace psd::bench
