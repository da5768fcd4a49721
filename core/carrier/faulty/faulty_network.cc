#include "core/carrier/faulty/faulty_network.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::carrier {

class FaultyCarrier : public Carrier {
 public:
  FaultyCarrier(std::shared_ptr<FaultyNetwork> network, std::shared_ptr<Node> node)
      : network_(std::move(network)), node_(std::move(node)) {}
  ~FaultyCarrier() override { Shutdown(); }

  std::string Name() const override { return "faulty"; }
  absl::StatusOr<std::string> Listen(const std::string& address, AcceptCallback accept) override {
    return network_->Listen(*node_, address, std::move(accept));
  }
  void Connect(const std::string& address, absl::Duration timeout,
               std::shared_ptr<LinkHandler> handler, ConnectCallback done) override {
    network_->Connect(node_, address, timeout, std::move(handler), std::move(done));
  }
  void Shutdown() override { network_->Shutdown(*node_); }

 private:
  const std::shared_ptr<FaultyNetwork> network_;  // shared by all its carriers
  const std::shared_ptr<Node> node_;              // shared with its links
};

std::shared_ptr<FaultyNetwork> FaultyNetwork::Create(const FaultyNetworkOptions& options) {
  return std::shared_ptr<FaultyNetwork>(new FaultyNetwork(options));
}

std::shared_ptr<Carrier> FaultyNetwork::NewCarrier(const std::string& name, const Limits& limits) {
  auto node = std::make_shared<Node>();
  node->name = name;
  node->limits = limits;
  {
    MutexLock lock(mutex_);
    bool is_new = nodes_.emplace(name, node).second;
    PSD_CHECK(is_new, "two carriers alive under one name");
  }
  return std::make_shared<FaultyCarrier>(shared_from_this(), std::move(node));
}

// Time and events.

absl::Time FaultyNetwork::NowLocked() const {
  return threaded_ ? std::max(now_, Clock::Steady().Now() + real_offset_) : now_;
}

EventQueue::Key FaultyNetwork::Schedule(absl::Time due, const Node* target, Task task) {
  EventQueue::Key key = events_.Add(due, target, std::move(task));
  wake_.NotifyAll();
  return key;
}

bool FaultyNetwork::StepUntil(absl::Time end) {
  NetworkEvent event;
  {
    MutexLock lock(mutex_);
    std::optional<absl::Time> due = events_.NextDue();
    if (!due.has_value() || *due > end) return false;
    now_ = std::max(now_, *due);
    event = events_.TakeFirst();
    running_ = event.target;
  }
  RunTask(std::move(event));
  return true;
}

void FaultyNetwork::RunTask(NetworkEvent event) {
  event.task();
  event.task = nullptr;
  MutexLock lock(mutex_);
  running_ = nullptr;
  wake_.NotifyAll();
}

void FaultyNetwork::RunFor(absl::Duration duration) {
  absl::Time end = Now() + duration;
  while (StepUntil(end)) {
  }
  MutexLock lock(mutex_);
  now_ = std::max(now_, end);
}

void FaultyNetwork::StartThread() {
  MutexLock lock(mutex_);
  if (threaded_) return;
  real_offset_ = now_ - Clock::Steady().Now();
  threaded_ = true;
  thread_ = std::thread([this] { RunThread(); });
}

void FaultyNetwork::StopThread() {
  {
    MutexLock lock(mutex_);
    if (!threaded_) return;
    now_ = NowLocked();
    threaded_ = false;
    wake_.NotifyAll();
  }
  thread_.join();
}

void FaultyNetwork::RunThread() {
  while (true) {
    absl::Time now;
    {
      MutexLock lock(mutex_);
      if (!threaded_) return;
      now = NowLocked();
      std::optional<absl::Time> due = events_.NextDue();
      if (!due.has_value()) {
        wake_.Wait(mutex_);
        continue;
      }
      if (*due > now) {
        wake_.WaitFor(mutex_, *due - now);
        continue;
      }
    }
    StepUntil(now);
  }
}

// Faults.

void FaultyNetwork::SetBlackHole(const std::string& from, const std::string& to, bool on) {
  MutexLock lock(mutex_);
  plan_.SetBlackHole(from, to, on);
  if (!on) {
    black_holes_.erase({from, to});
    return;
  }
  int silence = black_holes_[{from, to}] = ++silences_;
  Schedule(NowLocked() + options_.silence_timeout, nullptr, [this, from, to, silence] {
    MutexLock lock(mutex_);
    auto found = black_holes_.find({from, to});
    if (found == black_holes_.end() || found->second != silence) return;
    CutLinks(from, to, "silent for too long");
  });
}

void FaultyNetwork::SetRefuse(const std::string& name, bool on) {
  MutexLock lock(mutex_);
  if (on) {
    refusing_.insert(name);
  } else {
    refusing_.erase(name);
  }
}

void FaultyNetwork::Cut(const std::string& one, const std::string& other) {
  MutexLock lock(mutex_);
  CutLinks(one, other, "the connection was cut");
}

void FaultyNetwork::CutLinks(const std::string& one, const std::string& other,
                             const std::string& why) {
  for (const auto& link : links_) {
    const std::string& near = link->node->name;
    const std::string& far = link->peer_node->name;
    if (!Covers({one, other}, near, far) && !Covers({one, other}, far, near)) continue;
    link->open = false;
    ScheduleEnd(link, NowLocked(), absl::UnavailableError(absl::StrCat(far, ": ", why)));
  }
}

void FaultyNetwork::Crash(const std::string& name) {
  Remains dropped;  // destroyed after the lock is released, without being called
  MutexLock lock(mutex_);
  auto found = nodes_.find(name);
  if (found == nodes_.end()) return;
  std::shared_ptr<Node> node = found->second;
  dropped = Kill(*node, "the process died");
  while (threaded_ && running_ == node.get()) wake_.Wait(mutex_);
}

void FaultyNetwork::Shutdown(Node& node) {
  Remains remains;
  {
    MutexLock lock(mutex_);
    if (node.alive) remains = Kill(node, "the peer shut down");
    while (running_ == &node) wake_.Wait(mutex_);
  }
  for (ConnectCallback& done : remains.dials) {
    done(absl::UnavailableError("this carrier was shut down"));
  }
  for (const auto& handler : remains.handlers) {
    handler->OnClosed(absl::CancelledError("this carrier was shut down"));
  }
}

FaultyNetwork::Remains FaultyNetwork::Kill(Node& node, const std::string& why) {
  Remains remains;
  node.alive = false;
  auto named = nodes_.find(node.name);
  if (named != nodes_.end() && named->second.get() == &node) nodes_.erase(named);
  auto is_mine = [&node](const std::shared_ptr<FaultyLink>& link) {
    return link->node.get() == &node;
  };
  for (const auto& link : links_) {
    if (!is_mine(link)) continue;
    link->open = false;
    if (link->handler != nullptr) remains.handlers.push_back(std::move(link->handler));
    std::shared_ptr<FaultyLink> peer = link->peer.lock();
    if (peer == nullptr || plan_.IsBlackHole(node.name, peer->node->name)) continue;
    absl::Time due = std::max(link->last_due, NowLocked() + options_.latency);
    ScheduleEnd(peer, due, absl::UnavailableError(absl::StrCat(node.name, ": ", why)));
  }
  links_.erase(std::remove_if(links_.begin(), links_.end(), is_mine), links_.end());
  for (auto dial = dials_.begin(); dial != dials_.end();) {
    if ((*dial)->node.get() == &node) {
      remains.dials.push_back(std::exchange((*dial)->done, nullptr));
      events_.Remove((*dial)->timeout);
      dial = dials_.erase(dial);
    } else {
      ++dial;
    }
  }
  return remains;
}

}  // namespace psd::carrier
