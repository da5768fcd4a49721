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
  // The time after which the links through a black hole end, as keepalive would end them.
  absl::Duration silence_timeout = absl::Seconds(3);
  // The delay of every message, to which faults may add.
  absl::Duration latency = absl::ZeroDuration();
};

// Carriers made by one network reach each other and nothing else. The network has its own clock.
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

  // Returns a carrier called `name`, which must be unique among the living ones. It can listen at
  // any text as an address; ":0" at the end is replaced by a free number.
  virtual std::shared_ptr<Carrier> NewCarrier(const std::string& name,
                                              const Limits& limits = {}) = 0;

  // See FaultPlan.
  virtual void SetFaults(const std::string& from, const std::string& to, const Faults& faults) = 0;
  virtual void At(const std::string& from, const std::string& to, uint64_t n,
                  FaultAction action) = 0;
  virtual void SetBlackHole(const std::string& from, const std::string& to, bool on) = 0;
  // While on, connecting to `name` is refused.
  virtual void SetRefuse(const std::string& name, bool on) = 0;
  // Ends the links between carriers of these names ("*" for any), in both directions, now and at
  // both ends.
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
