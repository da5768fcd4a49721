#include "core/carrier/faulty/faulty_network.h"

#include <utility>

#include "core/base/status.h"
#include "core/carrier/faulty/network_impl.h"

namespace psd::carrier {
namespace {

class FaultyCarrier : public Carrier {
 public:
  FaultyCarrier(std::shared_ptr<NetworkImpl> network, std::shared_ptr<Node> node)
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
  const std::shared_ptr<NetworkImpl> network_;  // shared by all its carriers
  const std::shared_ptr<Node> node_;            // shared with its links
};

}  // namespace

std::shared_ptr<FaultyNetwork> FaultyNetwork::Create(const FaultyNetworkOptions& options) {
  return std::make_shared<NetworkImpl>(options);
}

std::shared_ptr<Carrier> NetworkImpl::NewCarrier(const std::string& name, const Limits& limits) {
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

}  // namespace psd::carrier
