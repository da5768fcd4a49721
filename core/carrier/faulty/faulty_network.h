#pragma once

// A simulated network in one process that loses and delays messages and breaks links on request.
// For tests and the simulation.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/mutex.h"
#include "core/carrier/carrier.h"
#include "core/carrier/faulty/event_queue.h"
#include "core/carrier/faulty/fault_plan.h"
#include "core/carrier/faulty/faulty_link.h"

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
class FaultyNetwork : public std::enable_shared_from_this<FaultyNetwork> {
 public:
  static std::shared_ptr<FaultyNetwork> Create(const FaultyNetworkOptions& options = {});
  ~FaultyNetwork() { StopThread(); }

  // Returns a carrier called `name`, which must be unique among the living ones. It can listen at
  // any text as an address; ":0" at the end is replaced by a free number.
  std::shared_ptr<Carrier> NewCarrier(const std::string& name, const Limits& limits = {});

  // See FaultPlan.
  void SetFaults(const std::string& from, const std::string& to, const Faults& faults) {
    MutexLock lock(mutex_);
    plan_.SetFaults(from, to, faults);
  }
  void At(const std::string& from, const std::string& to, uint64_t n, FaultAction action) {
    MutexLock lock(mutex_);
    plan_.At(from, to, n, action);
  }
  void SetBlackHole(const std::string& from, const std::string& to, bool on);
  // While on, connecting to `name` is refused.
  void SetRefuse(const std::string& name, bool on);
  // Ends the links between carriers of these names ("*" for any), in both directions, now and at
  // both ends.
  void Cut(const std::string& one, const std::string& other);
  // Simulates the death of the process `name`: its handlers are not called any more, its peers lose
  // their links, and its name and address are free again.
  void Crash(const std::string& name);

  // Moves time to the next event and runs it. Returns false if there is none.
  bool Step() { return StepUntil(absl::InfiniteFuture()); }
  void RunUntilIdle() {
    while (Step()) {
    }
  }
  // Runs all events of the next `duration`, and moves time to its end.
  void RunFor(absl::Duration duration);
  // Returns the network's clock, which lives as long as the network.
  const Clock& clock() const { return clock_; }

  // Starts a thread that runs events until StopThread, or until the network is destroyed.
  void StartThread();
  void StopThread();

 private:
  friend class FaultyCarrier;
  friend class FaultyLink;
  class NetworkClock : public Clock {
   public:
    explicit NetworkClock(const FaultyNetwork& network) : network_(network) {}
    absl::Time Now() const override { return network_.Now(); }

   private:
    const FaultyNetwork& network_;
  };

  // A Connect that is under way. Guarded by mutex_.
  struct Dial {
    std::shared_ptr<Node> node;
    std::string address;
    std::shared_ptr<LinkHandler> handler;  // shared with the user
    ConnectCallback done;                  // null after it was called
    EventQueue::Key timeout;
    std::shared_ptr<FaultyLink> near;  // the ends, once the listener was asked
    std::shared_ptr<FaultyLink> far;
    bool declined = false;
  };
  // The handlers and callbacks of a dying node, which must be called outside of the lock.
  struct Remains {
    std::vector<std::shared_ptr<LinkHandler>> handlers;
    std::vector<ConnectCallback> dials;
  };

  explicit FaultyNetwork(const FaultyNetworkOptions& options)
      : options_(options), clock_(*this), plan_(options.seed) {}

  // ---- For links and carriers.
  absl::Time Now() const PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return NowLocked();
  }
  absl::Status Send(FaultyLink& link, Message message) PSD_EXCLUDES(mutex_);
  void Close(FaultyLink& link) PSD_EXCLUDES(mutex_);
  absl::StatusOr<std::string> Listen(Node& node, const std::string& address, AcceptCallback accept)
      PSD_EXCLUDES(mutex_);
  void Connect(const std::shared_ptr<Node>& node, const std::string& address,
               absl::Duration timeout, std::shared_ptr<LinkHandler> handler, ConnectCallback done)
      PSD_EXCLUDES(mutex_);
  void Shutdown(Node& node) PSD_EXCLUDES(mutex_);

  // ---- Time and events.
  absl::Time NowLocked() const PSD_REQUIRES(mutex_);
  bool StepUntil(absl::Time end) PSD_EXCLUDES(mutex_);
  void RunTask(NetworkEvent event) PSD_EXCLUDES(mutex_);
  void RunThread() PSD_EXCLUDES(mutex_);
  EventQueue::Key Schedule(absl::Time due, const Node* target, Task task) PSD_REQUIRES(mutex_);

  // ---- Links.
  void Transmit(FaultyLink& link, const Message& message, const Fate& fate) PSD_REQUIRES(mutex_);
  void Deliver(FaultyLink& from, Message message) PSD_EXCLUDES(mutex_);
  void ScheduleEnd(const std::shared_ptr<FaultyLink>& link, absl::Time due, absl::Status reason)
      PSD_REQUIRES(mutex_);
  void TellEnd(FaultyLink& link, const absl::Status& reason) PSD_EXCLUDES(mutex_);
  void CutLinks(const std::string& one, const std::string& other, const std::string& why)
      PSD_REQUIRES(mutex_);
  Remains Kill(Node& node, const std::string& why) PSD_REQUIRES(mutex_);

  // ---- Connecting.
  std::shared_ptr<Node> FindListener(const std::string& address) const PSD_REQUIRES(mutex_);
  void Arrive(const std::shared_ptr<Dial>& dial) PSD_EXCLUDES(mutex_);
  void AskListener(const std::shared_ptr<Dial>& dial, const std::shared_ptr<Node>& listener)
      PSD_EXCLUDES(mutex_);
  void FinishDial(const std::shared_ptr<Dial>& dial, absl::Status status) PSD_EXCLUDES(mutex_);

  const FaultyNetworkOptions options_;
  const NetworkClock clock_;

  mutable Mutex mutex_;  // leaf
  CondVar wake_;         // new events, the end of a task, or stopping
  FaultPlan plan_ PSD_GUARDED_BY(mutex_);
  EventQueue events_ PSD_GUARDED_BY(mutex_);
  absl::Time now_ PSD_GUARDED_BY(mutex_) = absl::UnixEpoch();
  absl::Duration real_offset_ PSD_GUARDED_BY(mutex_);  // network time - machine time, threaded
  bool threaded_ PSD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
  const void* running_ PSD_GUARDED_BY(mutex_) = nullptr;  // the target of the task that runs now
  std::map<std::string, std::shared_ptr<Node>> nodes_ PSD_GUARDED_BY(mutex_);  // by name
  std::set<std::string> refusing_ PSD_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<FaultyLink>> links_ PSD_GUARDED_BY(mutex_);  // not closed yet
  std::vector<std::shared_ptr<Dial>> dials_ PSD_GUARDED_BY(mutex_);
  int next_port_ PSD_GUARDED_BY(mutex_) = 1;
  int silences_ PSD_GUARDED_BY(mutex_) = 0;
  std::map<std::pair<std::string, std::string>, int> black_holes_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::carrier
