#pragma once

// A simulated network in one process that loses and delays messages and breaks links on request.
// For tests and the simulation.

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/carrier/carrier.h"
#include "core/carrier/faulty/fault_plan.h"

namespace psd::carrier {

struct FaultyNetworkOptions {
  uint64_t seed = 1;
  // The time for which a black hole lasts before the links through it end, as keepalive would end
  // them.
  absl::Duration silence_timeout = absl::Seconds(3);
  // The delay of every message, to which faults may add.
  absl::Duration latency = absl::ZeroDuration();
};

// Carriers made by one network reach each other and nothing else. The network has a clock of its
// own.
//
// The network is driven in one of two ways:
//   by hand: events happen only in Step, RunFor and RunUntilIdle, which must be called from one
//     thread at a time. If the program has one thread, the seed and the calls determine everything.
//   by a thread: after StartThread time follows the machine's clock.
// Otherwise links, carriers and the network are thread-safe. Handlers run without a lock held.
class FaultyNetwork {
 public:
  static std::shared_ptr<FaultyNetwork> Create(const FaultyNetworkOptions& options = {});
  virtual ~FaultyNetwork() = default;

  // Returns a carrier called `name`, which must be unique among the living ones. Any text serves as
  // an address to listen at; ":0" at its end is replaced by a free number.
  virtual std::shared_ptr<Carrier> NewCarrier(const std::string& name,
                                              const Limits& limits = {}) = 0;

  // See FaultPlan.
  virtual void SetFaults(const std::string& from, const std::string& to, const Faults& faults) = 0;
  virtual void At(const std::string& from, const std::string& to, uint64_t n,
                  FaultAction action) = 0;
  virtual void SetBlackHole(const std::string& from, const std::string& to, bool on) = 0;
  // While on, connecting to `name` is refused.
  virtual void SetRefuse(const std::string& name, bool on) = 0;
  // Ends the links between carriers of these names (either way, "*" for any) now, at both ends.
  virtual void Cut(const std::string& one, const std::string& other) = 0;
  // Simulates the death of the process `name`: its handlers are not called any more, its peers lose
  // their links, and its name and address are free again.
  virtual void Crash(const std::string& name) = 0;

  // Moves time to the next event and runs it. Returns false if there is none.
  virtual bool Step() = 0;
  void RunUntilIdle() {
    while (Step()) {
    }
  }
  // Runs all events of the next `duration`, and moves time to its end.
  virtual void RunFor(absl::Duration duration) = 0;
  // Returns the network's clock, which lives as long as the network.
  virtual const Clock& clock() const = 0;

  // Starts a thread that runs events until StopThread, or until the network is destroyed.
  virtual void StartThread() = 0;
  virtual void StopThread() = 0;
};

}  // namespace psd::carrier
