#include <memory>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "core/carrier/shm/shm_factory.h"
#include "core/carrier/shm/unix_socket.h"
#include "tests/core/carrier/carrier_suite.h"
#include "tests/core/carrier/lending/lending_carrier.h"
#include "tests/core/carrier/shm_route.h"

namespace psd::carrier {
namespace {

class ShmWorld : public CarrierWorld {
 public:
  ShmWorld(const RingSizes& rings, bool lends) : rings_(rings), lends_(lends) {}

  std::shared_ptr<Carrier> NewCarrier(const Limits& limits) override {
    ShmCarrierOptions options;
    options.limits = limits;
    options.rings = rings_;
    options.keepalive_time = absl::Seconds(20);  // so that a loaded machine is not taken for dead
    options.keepalive_timeout = absl::Seconds(20);
    std::shared_ptr<Carrier> carrier = *NewShmCarrier(options);
    return lends_ ? std::make_shared<LendingCarrier>(std::move(carrier)) : carrier;
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
  const bool lends_;
  UnixListener silent_;
  std::unique_ptr<ShmRoute> route_;
};

MakeWorld WithRings(const RingSizes& rings, bool lends = false) {
  return [=] { return std::unique_ptr<CarrierWorld>(new ShmWorld(rings, lends)); };
}

INSTANTIATE_TEST_SUITE_P(Shm, CarrierSuite, testing::Values(WithRings({})));

// The rings are smaller than most frames, so frames go in parts and senders wait for space.
INSTANTIATE_TEST_SUITE_P(ShmSmallRings, CarrierSuite,
                         testing::Values(WithRings({/*control_bytes=*/4096, /*bulk_bytes=*/8192,
                                                    /*bulk_rings=*/1})));

// Large messages are lent.
INSTANTIATE_TEST_SUITE_P(ShmLending, CarrierSuite, testing::Values(WithRings({}, /*lends=*/true)));
INSTANTIATE_TEST_SUITE_P(ShmLendingSmallRings, CarrierSuite,
                         testing::Values(WithRings({4096, 8192, 1}, /*lends=*/true)));

}  // namespace
}  // namespace psd::carrier
