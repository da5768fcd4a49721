// An owner whose devices were named as a daemon's configuration names them: the device of a new
// value, full devices, and the owner's report on them.

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/psd.h"
#include "core/base/device.h"
#include "core/device/emulated/emulated_device.h"
#include "core/runtime/runtime.h"
#include "core/services/status/status_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/status.pb.h"
#include "server/daemon/config.h"
#include "server/daemon/devices.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kKiB = 1024;
constexpr server::DeviceConfig::Kind kEmulated = server::DeviceConfig::Kind::kEmulated;

worker::RuntimeOptions With(const std::vector<std::shared_ptr<Device>>& devices) {
  worker::RuntimeOptions options;
  options.devices = devices;
  return options;
}

// The owner has emu:0 with 1 MiB and emu:2 with 2 MiB.
class NamedDevicesTest : public ::testing::Test {
 protected:
  absl::StatusOr<RRef> Make(const std::string& name, const std::string& device, size_t bytes,
                            bool rows = false) {
    CreateOptions options;
    options.requires_grad = true;
    options.rows = rows;
    options.device = device;
    const auto floats = static_cast<int64_t>(bytes / sizeof(float));
    const Shape shape = rows ? Shape{floats / 4, 4} : Shape{floats};
    return trainer_->GetOrCreate("owner", name, Full(shape, 2), options);
  }
  // Creates a value with the device "auto", and returns the name of the device that has it.
  std::string ChosenFor(const std::string& name, size_t bytes, bool rows = false) {
    Must(Make(name, kAutoDevice, bytes, rows));
    return Report(name).device();
  }
  v1::NamedValue Report(const std::string& name) {
    const v1::WorkerStatus status = owner_.runtime().status().Collect({});
    for (const v1::NamedValue& value : status.values())
      if (value.name() == name) return value;
    ADD_FAILURE() << "no value is called " << name;
    return {};
  }
  size_t KernelsOf(size_t device) {
    return static_cast<EmulatedDevice&>(*devices_[device]).kernels_launched();
  }
  void Lose(size_t device) {
    static_cast<EmulatedDevice&>(*devices_[device]).Lose("it fell off the bus");
  }
  static void ExpectFull(const absl::Status& status, const std::string& device, size_t need,
                         size_t budget, size_t use) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(device), HasSubstr(absl::StrCat(need, " bytes")),
                      HasSubstr(absl::StrCat(" is ", budget, " bytes, of which ", use,
                                             " are in use; drop values there, or raise"))));
  }

  const std::vector<std::shared_ptr<Device>> devices_ =
      Must(server::OpenDevices({{kEmulated, 0, 1024 * kKiB}, {kEmulated, 2, 2048 * kKiB}}));
  TestOwner owner_{"owner", With(devices_)};
  std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {owner_.address()});
};

TEST_F(NamedDevicesTest, AutoIsTheDeviceWithTheMostRoom) {
  EXPECT_EQ(ChosenFor("a", 1280 * kKiB), "emu:2");
  EXPECT_EQ(ChosenFor("b", 512 * kKiB), "emu:0");
  EXPECT_EQ(ChosenFor("c", 512 * kKiB, /*rows=*/true), "emu:2");
  EXPECT_EQ(ChosenFor("d", 16 * kKiB), "emu:0");
}

TEST_F(NamedDevicesTest, AutoFindsAValueWhereverItLives) {
  for (const char* device : {"cpu", "emu:0", "auto"}) {
    const RRef made = Must(Make(device, device, 512 * kKiB));
    EXPECT_EQ(Must(Make(device, "auto", 512 * kKiB)).value_id(), made.value_id()) << device;
    const absl::StatusOr<RRef> other = Make(device, "auto", 256 * kKiB);
    EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition) << other.status();
  }
  EXPECT_EQ(Report("auto").device(), "emu:2");
  EXPECT_TRUE(Make("auto", "emu:2", 512 * kKiB).ok());
  const absl::Status elsewhere = Make("auto", "emu:0", 512 * kKiB).status();
  EXPECT_EQ(elsewhere.code(), absl::StatusCode::kFailedPrecondition) << elsewhere;
  EXPECT_THAT(std::string(elsewhere.message()), HasSubstr("on emu:2"));
}

TEST_F(NamedDevicesTest, AutoIsTheCpuForValuesThatNoDeviceCanHave) {
  Must(Make("all_of_emu:0", "emu:0", 1024 * kKiB));
  Must(Make("all_of_emu:2", "emu:2", 2048 * kKiB));
  CreateOptions options;
  options.device = kAutoDevice;
  const Program ids = Full({4}, 1, DType::kI64);
  const RRef made = Must(trainer_->GetOrCreate("owner", "ids", ids, options));
  EXPECT_EQ(Report("ids").device(), "cpu");
  EXPECT_EQ(Must(trainer_->GetOrCreate("owner", "ids", ids, options)).value_id(), made.value_id());
}

TEST_F(NamedDevicesTest, AutoLeavesOutLostDevices) {
  Lose(1);
  EXPECT_EQ(ChosenFor("a", 16 * kKiB), "emu:0");
  Lose(0);
  EXPECT_EQ(ChosenFor("b", 16 * kKiB), "cpu");
}

TEST(OwnerWithoutDevicesTest, AutoIsTheCpu) {
  TestOwner owner("owner");
  const auto trainer = StartTrainer("trainer", {owner.address()});
  CreateOptions options;
  options.requires_grad = true;
  options.device = kAutoDevice;
  const RRef w = Must(trainer->GetOrCreate("owner", "w", Full({4}, 2), options));
  EXPECT_EQ(owner.runtime().status().Collect({}).values(0).device(), "cpu");
  EXPECT_THAT(Read(*trainer, w), ElementsAre(2, 2, 2, 2));
}

TEST_F(NamedDevicesTest, AFullDeviceNamesNeedBudgetAndUse) {
  Must(Make("half", "emu:0", 512 * kKiB));
  ExpectFull(Make("more", "emu:0", 768 * kKiB).status(), "emu:0", 768 * kKiB, 1024 * kKiB,
             512 * kKiB);
  ExpectFull(Make("table", "emu:0", 768 * kKiB, /*rows=*/true).status(), "emu:0", 768 * kKiB,
             1024 * kKiB, 512 * kKiB);
  EXPECT_EQ(devices_[0]->used_bytes(), 512 * kKiB);
  EXPECT_TRUE(Make("more", "emu:2", 768 * kKiB).ok()) << "the budget of emu:2 is its own";
  EXPECT_TRUE(Make("table", "emu:0", 512 * kKiB, /*rows=*/true).ok()) << "there is room for this";
}

// Nothing is copied there, for which there would be no room.
TEST_F(NamedDevicesTest, AValueMayTakeAllOfADevice) {
  Must(Make("w", "emu:0", 1024 * kKiB));
  Must(Make("table", "emu:2", 2048 * kKiB, /*rows=*/true));
  for (const std::shared_ptr<Device>& device : devices_)
    EXPECT_EQ(device->used_bytes(), device->budget_bytes());
}

// When it has been made there, another device has the most room.
TEST_F(NamedDevicesTest, AutoKeepsAValueWhereItWasMade) {
  const size_t before = KernelsOf(1);
  EXPECT_EQ(ChosenFor("w", 1200 * kKiB), "emu:2");
  EXPECT_GT(KernelsOf(1), before) << "it was made elsewhere";
  EXPECT_EQ(devices_[1]->used_bytes(), 1200 * kKiB);
  EXPECT_EQ(ChosenFor("table", 700 * kKiB, /*rows=*/true), "emu:0");
  EXPECT_GT(KernelsOf(0), 0u) << "it was made elsewhere";
  EXPECT_EQ(devices_[0]->used_bytes(), 700 * kKiB);
}

// The device has a remedy of its own.
TEST_F(NamedDevicesTest, ADeviceThatRefusesMemoryNamesItsBudgetOnce) {
  static_cast<EmulatedDevice&>(*devices_[0]).FailAllocation(1);
  const absl::Status refused = Make("w", "emu:0", 16 * kKiB).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("w"), HasSubstr("emu:0")));
  const std::vector<std::string> around = absl::StrSplit(refused.message(), "the budget is ");
  EXPECT_EQ(around.size(), 2u) << refused;
  EXPECT_TRUE(Make("w", "emu:0", 16 * kKiB).ok());
}

// Beside the parameter, Adam needs a spare and two moments, and SGD a spare. Both also need room
// for a gradient.
TEST_F(NamedDevicesTest, AnOptimizerThatFindsNoRoomNamesBudgetAndUse) {
  const RRef w = Must(Make("w", "emu:0", 300 * kKiB));
  const absl::Status refused =
      DistributedOptimizer::Create(*trainer_, "main", Adam{0.1}, {w}).status();
  ExpectFull(refused, "emu:0", 300 * kKiB, 1024 * kKiB, 900 * kKiB);
  EXPECT_EQ(devices_[0]->used_bytes(), 300 * kKiB);
  EXPECT_TRUE(DistributedOptimizer::Create(*trainer_, "main", Sgd{0.1}, {w}).ok());
}

TEST_F(NamedDevicesTest, TheStatusShowsDevicesAndWhereEachValueLives) {
  Must(Make("w", "emu:2", 512 * kKiB));
  Must(Make("table", "emu:0", 256 * kKiB, /*rows=*/true));
  const RRef b = Must(Make("b", "cpu", 16 * kKiB));
  Must(DistributedOptimizer::Create(*trainer_, "main", Sgd{0.1}, {b}));
  Lose(0);
  const v1::WorkerStatus status = owner_.runtime().status().Collect({});
  ASSERT_EQ(status.devices_size(), 2);
  EXPECT_EQ(status.devices(0).name(), "emu:0");
  EXPECT_EQ(status.devices(0).used_bytes(), 256 * kKiB);
  EXPECT_EQ(status.devices(0).budget_bytes(), 1024 * kKiB);
  EXPECT_THAT(status.devices(0).lost(), HasSubstr("it fell off the bus"));
  EXPECT_EQ(status.devices(1).name(), "emu:2");
  EXPECT_EQ(status.devices(1).used_bytes(), 512 * kKiB);
  EXPECT_EQ(status.devices(1).budget_bytes(), 2048 * kKiB);
  EXPECT_EQ(status.devices(1).lost(), "");
  std::map<std::string, std::string> places;
  for (const v1::NamedValue& value : status.values()) places[value.name()] = value.device();
  EXPECT_EQ(places, (std::map<std::string, std::string>{
                        {"b", "cpu"}, {"main", ""}, {"table", "emu:0"}, {"w", "emu:2"}}));
}

}  // namespace
}  // namespace psd
