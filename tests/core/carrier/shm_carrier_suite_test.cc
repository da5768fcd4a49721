#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/carrier/shm/shm_factory.h"
#include "core/carrier/shm/unix_socket.h"
#include "tests/core/carrier/carrier_suite.h"
#include "tests/core/carrier/shm_route.h"

namespace psd::carrier {
namespace {

class ShmWorld : public CarrierWorld {
 public:
  explicit ShmWorld(const RingSizes& rings) : rings_(rings) {}

  std::shared_ptr<Carrier> NewCarrier(const Limits& limits) override {
    ShmCarrierOptions options;
    options.limits = limits;
    options.rings = rings_;
    options.keepalive_time = absl::Seconds(20);  // so that a loaded machine is not taken for dead
    options.keepalive_timeout = absl::Seconds(20);
    return *NewShmCarrier(options);
  }
  std::string AnyAddress() override { return "unix:@"; }
  std::string DeadAddress() override { return Listener().address; }
  std::string SilentAddress() override {
    silent_ = Listener();  // the system accepts connections, and no process answers
    return silent_.address;
  }
  std::string RouteTo(const std::string& address) override {
    route_ = std::make_unique<ShmRoute>(address);
    return route_->address();
  }
  void CutRoute() override { route_->Cut(); }

 private:
  static UnixListener Listener() {
    auto listener = ListenUnix("unix:@");
    PSD_CHECK(listener.ok(), "no free socket");
    return *std::move(listener);
  }

  const RingSizes rings_;
  UnixListener silent_;
  std::unique_ptr<ShmRoute> route_;
};

MakeWorld WithRings(const RingSizes& rings) {
  return [rings] { return std::unique_ptr<CarrierWorld>(new ShmWorld(rings)); };
}

INSTANTIATE_TEST_SUITE_P(Shm, CarrierSuite, testing::Values(WithRings({})));

// The rings are smaller than most frames, so frames go in parts and senders wait for space.
INSTANTIATE_TEST_SUITE_P(ShmSmallRings, CarrierSuite,
                         testing::Values(WithRings({/*control_bytes=*/4096, /*bulk_bytes=*/8192,
                                                    /*bulk_rings=*/1})));

}  // namespace
}  // namespace psd::carrier
