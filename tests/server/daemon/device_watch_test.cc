#include "server/daemon/device_watch.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/clock.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "core/base/timer.h"
#include "core/device/emulated/emulated_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/device/test_device.h"

namespace psd::server {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class DeviceWatchTest : public ::testing::Test {
 protected:
  // Lets time pass until `device` is reported.
  void AwaitReportOf(size_t device) {
    while (!reported_[device].future().IsReady()) {
      clock_.Advance(DeviceWatch::kPeriod);
      timers_.Poll();
      std::this_thread::yield();
    }
  }
  void OnLost(const Device& device, const absl::Status& why) {
    reports_.emplace_back(device.name(), why);
    for (size_t i = 0; i < devices_.size(); ++i)
      if (devices_[i].get() == &device) reported_[i].Set(Unit{});
  }

  const std::vector<std::shared_ptr<EmulatedDevice>> devices_ = testing::NewTestDevices(3, 0);
  std::vector<Promise<Unit>> reported_{3};
  std::vector<std::pair<std::string, absl::Status>> reports_;
  FakeClock clock_;
  TimerQueue timers_{clock_};
  DeviceWatch watch_{
      {devices_.begin(), devices_.end()},
      timers_,
      [this](const Device& device, const absl::Status& why) { OnLost(device, why); }};
};

TEST_F(DeviceWatchTest, ReportsEachLostDeviceOnceWithTheReason) {
  devices_[2]->Lose("it fell off the bus");
  watch_.Start();
  AwaitReportOf(2);
  devices_[0]->Lose("it is too hot");
  AwaitReportOf(0);
  timers_.Stop();
  EXPECT_THAT(reports_, ElementsAre(Pair("emu:2", devices_[2]->health()),
                                    Pair("emu:0", devices_[0]->health())));
}

}  // namespace
}  // namespace psd::server
