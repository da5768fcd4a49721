#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/carrier/faulty/faulty_network.h"
#include "tests/core/carrier/carrier_suite.h"

namespace psd::carrier {
namespace {

class FaultyWorld : public CarrierWorld {
 public:
  FaultyWorld() : network_(FaultyNetwork::Create()) { network_->StartThread(); }
  ~FaultyWorld() override { network_->StopThread(); }

  std::shared_ptr<Carrier> NewCarrier(const Limits& limits) override {
    return network_->NewCarrier(absl::StrCat("carrier", ++carriers_), limits);
  }
  std::string AnyAddress() override { return "host:0"; }
  std::string DeadAddress() override { return "host:dead"; }
  std::string SilentAddress() override {
    silent_ = network_->NewCarrier("silent");
    auto address = silent_->Listen("host:silent", [](std::shared_ptr<Link>) { return nullptr; });
    network_->SetBlackHole("*", "silent", true);
    return *address;
  }
  std::string RouteTo(const std::string& address) override { return address; }
  void CutRoute() override { network_->Cut("*", "*"); }

 private:
  const std::shared_ptr<FaultyNetwork> network_;
  std::shared_ptr<Carrier> silent_;
  int carriers_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Faulty, CarrierSuite, testing::Values(MakeWorld([] {
                           return std::unique_ptr<CarrierWorld>(new FaultyWorld);
                         })));

}  // namespace
}  // namespace psd::carrier
