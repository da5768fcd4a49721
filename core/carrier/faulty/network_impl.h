#pragma once

// The implementation of FaultyNetwork: nodes, link ends, and the events between them.

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
#include "core/carrier/faulty/faulty_network.h"

namespace psd::carrier {

class NetworkImpl;

// One process on the network. The network's mutex guards it.
struct Node {
  std::string name;
  Limits limits;
  bool alive = true;
  std::string address;  // where it listens; empty: it does not listen
  AcceptCallback accept;
};

// One end of a link. The network's mutex guards all members that change.
class FaultyLink : public Link, public std::enable_shared_from_this<FaultyLink> {
 public:
  FaultyLink(std::weak_ptr<NetworkImpl> network, std::shared_ptr<Node> node,
             std::shared_ptr<Node> peer_node)
      : network_(std::move(network)), node(std::move(node)), peer_node(std::move(peer_node)) {}

  absl::Status Send(Message message) override;
  void Close() override;
  std::string Description() const override { return "faulty " + peer_node->name; }

 private:
  const std::weak_ptr<NetworkImpl> network_;

 public:
  const std::shared_ptr<Node> node;       // shared with its other links
  const std::shared_ptr<Node> peer_node;  // shared with its other links
  std::weak_ptr<FaultyLink> peer;
  std::shared_ptr<LinkHandler> handler;  // shared with the user until OnClosed
  bool open = true;                      // Send works
  size_t queued_bytes = 0;
  absl::Time last_due = absl::InfinitePast();  // of the last ordered message sent from this end
};

class NetworkImpl : public FaultyNetwork, public std::enable_shared_from_this<NetworkImpl> {
 public:
  explicit NetworkImpl(const FaultyNetworkOptions& options)
      : options_(options), clock_(*this), plan_(options.seed) {}
  ~NetworkImpl() override { StopThread(); }

  std::shared_ptr<Carrier> NewCarrier(const std::string& name, const Limits& limits) override;
  void SetFaults(const std::string& from, const std::string& to, const Faults& faults) override {
    MutexLock lock(mutex_);
    plan_.SetFaults(from, to, faults);
  }
  void At(const std::string& from, const std::string& to, uint64_t n, FaultAction action) override {
    MutexLock lock(mutex_);
    plan_.At(from, to, n, action);
  }
  void SetBlackHole(const std::string& from, const std::string& to, bool on) override;
  void SetRefuse(const std::string& name, bool on) override;
  void Cut(const std::string& one, const std::string& other) override;
  void Crash(const std::string& name) override;
  bool Step() override { return StepUntil(absl::InfiniteFuture()); }
  void RunFor(absl::Duration duration) override;
  const Clock& clock() const override { return clock_; }
  void StartThread() override;
  void StopThread() override;

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

 private:
  class NetworkClock : public Clock {
   public:
    explicit NetworkClock(const NetworkImpl& network) : network_(network) {}
    absl::Time Now() const override { return network_.Now(); }

   private:
    const NetworkImpl& network_;
  };

  // A Connect that is under way. mutex_ guards it.
  struct Dial {
    std::shared_ptr<Node> node;
    std::string address;
    std::shared_ptr<LinkHandler> handler;  // shared with the user
    ConnectCallback done;                  // null after it was called
    EventQueue::Key timeout;
    std::shared_ptr<FaultyLink> near;  // the ends, set once the listener was asked
    std::shared_ptr<FaultyLink> far;
    bool declined = false;
  };
  // The handlers and callbacks of a dying node, which must be called outside of the lock.
  struct Remains {
    std::vector<std::shared_ptr<LinkHandler>> handlers;
    std::vector<ConnectCallback> dials;
  };

  // Time and events.
  absl::Time NowLocked() const PSD_REQUIRES(mutex_);
  bool StepUntil(absl::Time end) PSD_EXCLUDES(mutex_);
  void RunTask(NetworkEvent event) PSD_EXCLUDES(mutex_);
  void RunThread() PSD_EXCLUDES(mutex_);
  EventQueue::Key Schedule(absl::Time due, const Node* target, Task task) PSD_REQUIRES(mutex_);

  // Links.
  void Transmit(FaultyLink& link, const Message& message, const Fate& fate) PSD_REQUIRES(mutex_);
  void Deliver(FaultyLink& from, Message message) PSD_EXCLUDES(mutex_);
  void ScheduleEnd(const std::shared_ptr<FaultyLink>& link, absl::Time due, absl::Status reason)
      PSD_REQUIRES(mutex_);
  void TellEnd(FaultyLink& link, const absl::Status& reason) PSD_EXCLUDES(mutex_);
  void CutLinks(const std::string& one, const std::string& other, const std::string& why)
      PSD_REQUIRES(mutex_);
  Remains Kill(Node& node, const std::string& why) PSD_REQUIRES(mutex_);

  // Connecting.
  std::shared_ptr<Node> FindListener(const std::string& address) const PSD_REQUIRES(mutex_);
  void Arrive(const std::shared_ptr<Dial>& dial) PSD_EXCLUDES(mutex_);
  void AskListener(const std::shared_ptr<Dial>& dial, const std::shared_ptr<Node>& listener)
      PSD_EXCLUDES(mutex_);
  void FinishDial(const std::shared_ptr<Dial>& dial, absl::Status status) PSD_EXCLUDES(mutex_);

  const FaultyNetworkOptions options_;
  const NetworkClock clock_;

  mutable Mutex mutex_;  // leaf
  CondVar wake_;         // notified of new events, the end of a task, and stopping
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
