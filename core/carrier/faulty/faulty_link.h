#pragma once

// The processes of a FaultyNetwork and the links between them.

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/carrier/carrier.h"

namespace psd::carrier {

class FaultyNetwork;

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
  FaultyLink(std::weak_ptr<FaultyNetwork> network, std::shared_ptr<Node> node,
             std::shared_ptr<Node> peer_node)
      : network_(std::move(network)), node(std::move(node)), peer_node(std::move(peer_node)) {}

  absl::Status Send(Message message) override;
  void Close() override;
  std::string Description() const override { return "faulty " + peer_node->name; }

 private:
  const std::weak_ptr<FaultyNetwork> network_;

 public:
  const std::shared_ptr<Node> node;       // shared with its other links
  const std::shared_ptr<Node> peer_node;  // shared with its other links
  std::weak_ptr<FaultyLink> peer;
  std::shared_ptr<LinkHandler> handler;  // shared with the user until OnClosed
  bool open = true;                      // Send works
  size_t queued_bytes = 0;
  absl::Time last_due = absl::InfinitePast();  // of the last ordered message sent from this end
};

}  // namespace psd::carrier
