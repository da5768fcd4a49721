// FaultyNetwork: opens links, carries their messages, and ends them.

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/carrier/faulty/faulty_network.h"
#include "core/carrier/frame.h"

namespace psd::carrier {
namespace {

Limits Lesser(const Limits& a, const Limits& b) {
  Limits limits = a;
  limits.max_header_bytes = std::min(a.max_header_bytes, b.max_header_bytes);
  limits.max_message_bytes = std::min(a.max_message_bytes, b.max_message_bytes);
  limits.max_buffers = std::min(a.max_buffers, b.max_buffers);
  limits.max_assembly_bytes = std::min(a.max_assembly_bytes, b.max_assembly_bytes);
  return limits;
}

}  // namespace

absl::Status FaultyLink::Send(Message message) {
  std::shared_ptr<FaultyNetwork> network = network_.lock();
  if (network == nullptr) return absl::UnavailableError("the network is gone");
  return network->Send(*this, std::move(message));
}

void FaultyLink::Close() {
  if (std::shared_ptr<FaultyNetwork> network = network_.lock()) network->Close(*this);
}

absl::Status FaultyNetwork::Send(FaultyLink& link, Message message) {
  MutexLock lock(mutex_);
  if (!link.open) {
    return absl::UnavailableError(absl::StrCat("the link to ", link.peer_node->name, " has ended"));
  }
  Limits limits = Lesser(link.node->limits, link.peer_node->limits);
  PSD_RETURN_IF_ERROR(CheckShape(ShapeOf(message), limits));
  size_t bytes = message.TotalBytes();
  if (!message.buffers.empty() && link.queued_bytes + bytes > limits.max_send_queue_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a message of ", bytes, " bytes with ", link.queued_bytes,
        " bytes waiting exceeds max_send_queue_bytes = ", limits.max_send_queue_bytes));
  }
  Fate fate = plan_.Decide(link.node->name, link.peer_node->name);
  if (fate.cut) {
    for (const auto& end : {link.shared_from_this(), link.peer.lock()}) {
      if (end == nullptr) continue;
      end->open = false;
      ScheduleEnd(end, NowLocked(), absl::UnavailableError("the connection was cut"));
    }
    return absl::OkStatus();  // the message was accepted and is lost with the link
  }
  Transmit(link, message, fate);
  return absl::OkStatus();
}

void FaultyNetwork::Transmit(FaultyLink& link, const Message& message, const Fate& fate) {
  absl::Time due = NowLocked() + options_.latency + fate.delay;
  // Large messages travel beside the small ones, as on a real link.
  if (fate.ordered && message.TotalBytes() <= kMaxInlineBytes) {
    due = link.last_due = std::max(due, link.last_due);
  }
  for (int copy = 0; copy < fate.copies; ++copy) {
    link.queued_bytes += message.TotalBytes();
    Schedule(due, link.peer_node.get(), [this, from = link.shared_from_this(), message]() mutable {
      Deliver(*from, std::move(message));
    });
  }
}

void FaultyNetwork::Deliver(FaultyLink& from, Message message) {
  std::shared_ptr<LinkHandler> handler;
  {
    MutexLock lock(mutex_);
    from.queued_bytes -= message.TotalBytes();
    std::shared_ptr<FaultyLink> to = from.peer.lock();
    if (to == nullptr || !to->open) return;
    handler = to->handler;
  }
  if (handler != nullptr) handler->OnMessage(std::move(message));
}

void FaultyNetwork::Close(FaultyLink& link) {
  MutexLock lock(mutex_);
  if (!link.open) return;
  link.open = false;
  absl::Time now = NowLocked();
  ScheduleEnd(link.shared_from_this(), now,
              absl::CancelledError(absl::StrCat("this end closed ", link.Description())));
  std::shared_ptr<FaultyLink> peer = link.peer.lock();
  if (peer == nullptr || plan_.IsBlackHole(link.node->name, peer->node->name)) return;
  ScheduleEnd(peer, std::max(link.last_due, now + options_.latency),
              absl::UnavailableError(absl::StrCat(link.node->name, " closed the link")));
}

void FaultyNetwork::ScheduleEnd(const std::shared_ptr<FaultyLink>& link, absl::Time due,
                                absl::Status reason) {
  Schedule(due, link->node.get(), [this, link, reason] { TellEnd(*link, reason); });
}

void FaultyNetwork::TellEnd(FaultyLink& link, const absl::Status& reason) {
  std::shared_ptr<LinkHandler> handler;
  {
    MutexLock lock(mutex_);
    link.open = false;
    handler = std::move(link.handler);
    links_.erase(std::remove(links_.begin(), links_.end(), link.shared_from_this()), links_.end());
  }
  if (handler != nullptr) handler->OnClosed(reason);
}

absl::StatusOr<std::string> FaultyNetwork::Listen(Node& node, const std::string& address,
                                                  AcceptCallback accept) {
  MutexLock lock(mutex_);
  if (!node.alive) return absl::UnavailableError("this carrier was shut down");
  if (!node.address.empty()) return absl::FailedPreconditionError("this carrier listens already");
  std::string bound = address;
  if (absl::EndsWith(address, ":0")) {
    bound = absl::StrCat(address.substr(0, address.size() - 1), next_port_++);
  }
  if (FindListener(bound) != nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen at ", bound, ": Address already in use"));
  }
  node.address = bound;
  node.accept = std::move(accept);
  return bound;
}

std::shared_ptr<Node> FaultyNetwork::FindListener(const std::string& address) const {
  for (const auto& [name, node] : nodes_) {
    if (node->address == address) return node;
  }
  return nullptr;
}

void FaultyNetwork::Connect(const std::shared_ptr<Node>& node, const std::string& address,
                            absl::Duration timeout, std::shared_ptr<LinkHandler> handler,
                            ConnectCallback done) {
  {
    MutexLock lock(mutex_);
    if (node->alive) {
      auto dial = std::make_shared<Dial>();
      dial->node = node;
      dial->address = address;
      dial->handler = std::move(handler);
      dial->done = std::move(done);
      dials_.push_back(dial);
      dial->timeout = Schedule(NowLocked() + timeout, node.get(), [this, dial, timeout] {
        FinishDial(dial, absl::DeadlineExceededError(absl::StrCat("no answer from ", dial->address,
                                                                  " within ",
                                                                  absl::FormatDuration(timeout))));
      });
      Schedule(NowLocked() + options_.latency, nullptr, [this, dial] { Arrive(dial); });
      return;
    }
  }
  done(absl::UnavailableError("this carrier was shut down"));
}

void FaultyNetwork::Arrive(const std::shared_ptr<Dial>& dial) {
  MutexLock lock(mutex_);
  std::shared_ptr<Node> listener = FindListener(dial->address);
  if (listener != nullptr && plan_.IsBlackHole(dial->node->name, listener->name)) return;
  if (listener == nullptr || refusing_.count(listener->name) > 0) {
    absl::Status refused = absl::UnavailableError(
        absl::StrCat("connection refused: nobody listens at ", dial->address));
    Schedule(NowLocked() + options_.latency, dial->node.get(),
             [this, dial, refused] { FinishDial(dial, refused); });
    return;
  }
  Schedule(NowLocked(), listener.get(), [this, dial, listener] { AskListener(dial, listener); });
}

void FaultyNetwork::AskListener(const std::shared_ptr<Dial>& dial,
                                const std::shared_ptr<Node>& listener) {
  auto near = std::make_shared<FaultyLink>(weak_from_this(), dial->node, listener);
  auto far = std::make_shared<FaultyLink>(weak_from_this(), listener, dial->node);
  AcceptCallback accept;
  {
    MutexLock lock(mutex_);
    if (dial->done == nullptr || !listener->alive) return;  // given up meanwhile
    near->peer = far;
    far->peer = near;
    dial->near = near;
    dial->far = far;
    accept = listener->accept;
    // This is scheduled before the callback runs, so that messages that the callback sends arrive
    // after the answer.
    if (!plan_.IsBlackHole(listener->name, dial->node->name)) {
      Schedule(NowLocked() + options_.latency, dial->node.get(),
               [this, dial] { FinishDial(dial, absl::OkStatus()); });
    }
  }
  std::shared_ptr<LinkHandler> handler = accept(far);
  {
    MutexLock lock(mutex_);
    dial->declined = handler == nullptr;
    if (dial->declined) far->open = false;
    if (!dial->declined && listener->alive) {
      far->handler = std::move(handler);
      links_.push_back(far);
    }
  }
  if (handler != nullptr) handler->OnClosed(absl::CancelledError("this carrier was shut down"));
}

void FaultyNetwork::FinishDial(const std::shared_ptr<Dial>& dial, absl::Status status) {
  ConnectCallback done;
  std::shared_ptr<LinkHandler> unused;
  {
    MutexLock lock(mutex_);
    if (dial->done == nullptr) return;
    done = std::exchange(dial->done, nullptr);
    events_.Remove(dial->timeout);
    dials_.erase(std::remove(dials_.begin(), dials_.end(), dial), dials_.end());
    if (status.ok() && dial->declined)
      status = absl::UnavailableError("the peer declined the link");
    if (status.ok()) {
      dial->near->handler = std::move(dial->handler);
      links_.push_back(dial->near);
    } else if (dial->far != nullptr) {
      ScheduleEnd(dial->far, NowLocked(), absl::UnavailableError("the peer gave up connecting"));
    }
    unused = std::move(dial->handler);
  }
  if (!status.ok()) return done(status);
  done(std::static_pointer_cast<Link>(dial->near));
}

}  // namespace psd::carrier
