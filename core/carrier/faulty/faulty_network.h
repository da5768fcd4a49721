#pragma once

// A network in one process that loses, delays and breaks on request: for tests and the simulation.

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
  // How long a black hole lasts before the links through it end, as keepalive would end them.
  absl::Duration silence_timeout = absl::Seconds(3);
  // Of every message, before any fault.
  absl::Duration latency = absl::ZeroDuration();
};

// Carriers made by one network reach each other and nothing else. Time is the network's own.
//
// Driven in one of two ways:
//   by hand: nothing happens but in Step, RunFor and RunUntilIdle (call them from one thread at a
//     time). With one thread in all, everything is determined by the seed and the calls.
//   by a thread: after StartThread time follows the machine's clock.
// Links, carriers and the network are thread-safe otherwise. Handlers run without a lock held.
class FaultyNetwork {
 public:
  static std::shared_ptr<FaultyNetwork> Create(const FaultyNetworkOptions& options = {});
  virtual ~FaultyNetwork() = default;

  // A carrier called `name`, unique among those alive. Listens at any text; ":0" at the end is
  // replaced by a free number.
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
  // The process of `name` dies: its handlers hear nothing more, its peers lose their links, its
  // name and address are free again.
  virtual void Crash(const std::string& name) = 0;

  // Moves time to the next event and lets it happen; false if there is none.
  virtual bool Step() = 0;
  void RunUntilIdle() {
    while (Step()) {
    }
  }
  // All events of the next `duration`, then time stands at its end.
  virtual void RunFor(absl::Duration duration) = 0;
  // The network's time. Lives as long as the network.
  virtual const Clock& clock() const = 0;

  // Runs events on a thread of the network from now on, until its last user is gone or StopThread.
  virtual void StartThread() = 0;
  virtual void StopThread() = 0;
};

}  // namespace psd::carrier
