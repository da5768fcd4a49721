#include <unistd.h>

#include <memory>
#include <string>

#include "core/carrier/faulty/tcp_route.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "tests/core/carrier/carrier_suite.h"

namespace psd::carrier {
namespace {

class GrpcWorld : public CarrierWorld {
 public:
  ~GrpcWorld() override {
    if (silent_ >= 0) close(silent_);
  }
  std::shared_ptr<Carrier> NewCarrier(const Limits& limits) override {
    GrpcCarrierOptions options;
    options.limits = limits;
    options.keepalive_time = absl::Seconds(20);  // so that a loaded machine is not taken for dead
    options.keepalive_timeout = absl::Seconds(20);
    return *NewGrpcCarrier(options);
  }
  std::string AnyAddress() override { return "127.0.0.1:0"; }
  std::string DeadAddress() override {
    int port = 0;
    close(ListenOnLoopback(&port));
    return absl::StrCat("127.0.0.1:", port);
  }
  std::string SilentAddress() override {
    int port = 0;
    silent_ = ListenOnLoopback(&port);  // the system accepts connections, and nobody answers
    return absl::StrCat("127.0.0.1:", port);
  }
  std::string RouteTo(const std::string& address) override {
    route_ = std::make_unique<TcpRoute>(address);
    return route_->address();
  }
  void CutRoute() override { route_->Cut(); }

 private:
  int silent_ = -1;
  std::unique_ptr<TcpRoute> route_;
};

INSTANTIATE_TEST_SUITE_P(Grpc, CarrierSuite, testing::Values(MakeWorld([] {
                           return std::unique_ptr<CarrierWorld>(new GrpcWorld);
                         })));

}  // namespace
}  // namespace psd::carrier
