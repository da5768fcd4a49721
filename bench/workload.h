#pragma once

// A benchmark case: operations of psd, and a floor, which is the cost of the same work on the bare
// machine.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace psd::bench {

// Where the programs are that cases start.
struct Environment {
  std::string daemon;  // psd
  std::string helper;  // //bench:helper
};

// The unit in which a cost (seconds per operation; bytes for memory) is shown: cost * factor, or
// factor / cost for a rate.
struct Unit {
  std::string name;
  double factor = 1;
  bool rate = false;
  double Show(double cost) const { return rate ? factor / cost : cost * factor; }
};

// Confined to one thread. Created, started, then run in blocks.
class Workload {
 public:
  virtual ~Workload() = default;

  // Starts what it needs and warms up.
  virtual absl::Status Start(const Environment& environment) = 0;

  // Runs one block of operations. Returns the cost of each, or the mean cost if they overlap.
  virtual absl::StatusOr<std::vector<double>> RunPsd() = 0;
  // Runs one block of the floor. Returns its median cost, or nullopt if the case has no floor.
  virtual absl::StatusOr<std::optional<double>> RunFloor() = 0;
};

struct Case {
  std::string name;     // "call_empty": what --only takes
  std::string carrier;  // "grpc"; "none" where nothing is sent
  Unit unit;
  bool latency = false;  // show the 99th percentile too
  bool has_peer = true;  // the peer can do the same
  int blocks = 7;
  std::function<std::unique_ptr<Workload>()> make;
};

// In the order in which they run.
std::vector<Case> AllCases();

}  // namespace psd::bench
