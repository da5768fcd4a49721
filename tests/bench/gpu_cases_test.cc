// The cases of devices on emulated devices, where they are tiny. Each compares its results with
// those of the CPU.

#include "bench/gpu/cases.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/gpu/devices.h"
#include "bench/report.h"
#include "bench/runner.h"
#include "bench/workload.h"
#include "core/device/emulated/emulated_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/daemon/config.h"

namespace psd::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> NamesOfCases() {
  std::vector<std::string> names;
  for (const Case& one : GpuCases()) names.push_back(one.name);
  return names;
}

Case CaseCalled(const std::string& name) {
  for (const Case& one : GpuCases())
    if (one.name == name) return one;
  return {};
}

// emu:0 and emu:1.
std::vector<server::DeviceConfig> TwoDevices() {
  std::vector<server::DeviceConfig> devices(2);
  devices[1].number = 1;
  return devices;
}

class GpuCaseTest : public ::testing::TestWithParam<std::string> {
 protected:
  absl::StatusOr<Row> RunHere(const std::string& carrier) {
    Case one = CaseCalled(GetParam());
    one.blocks = 1;
    Environment environment;
    environment.carrier = carrier;
    const absl::Status ready = devices_.Provide(one.devices, environment);
    EXPECT_TRUE(ready.ok()) << ready;
    return RunCase(one, environment, nullptr);
  }

  GpuDevices devices_{TwoDevices()};
};

INSTANTIATE_TEST_SUITE_P(Cases, GpuCaseTest, ::testing::ValuesIn(NamesOfCases()),
                         [](const auto& info) { return info.param; });

TEST_P(GpuCaseTest, GivesARowWithAFloor) {
  const auto row = RunHere("grpc");
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_EQ(row->name, GetParam());
  EXPECT_GT(row->value, 0);
  EXPECT_GT(row->floor.value(), 0);
  EXPECT_GT(row->efficiency.value(), 0);
  EXPECT_FALSE(row->peer.has_value());
}

TEST_P(GpuCaseTest, ThoseThatSendAlsoSendThroughSharedMemory) {
  const bool sends = CaseCalled(GetParam()).sends;
  const auto row = RunHere("shm");
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_EQ(row->carrier, sends ? "shm" : "none");
}

TEST_P(GpuCaseTest, ALostDeviceFailsTheCase) {
  Environment environment;
  ASSERT_TRUE(devices_.Provide(2, environment).ok());
  static_cast<EmulatedDevice&>(*environment.devices[0]).Lose("a test");
  const absl::Status failed = RunHere("grpc").status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("emu:0"));
}

TEST(GpuCases, AreThese) {
  EXPECT_THAT(NamesOfCases(),
              ElementsAre("gpu_opt_sgd", "gpu_opt_adagrad", "gpu_opt_adam", "gpu_opt_adamw",
                          "gpu_opt_adamax", "gpu_opt_adadelta", "gpu_opt_rmsprop", "gpu_opt_rprop",
                          "gpu_opt_small", "gpu_rows_lookup", "gpu_rows_update", "gpu_pull_256MiB",
                          "gpu_step_adam", "gpu_mlp", "gpu_allreduce"));
}

}  // namespace
}  // namespace psd::bench
