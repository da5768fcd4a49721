// An owner whose device has no room for a step, or is lost: the step changes nothing, and the CPU
// goes on. The tests run with several seeds, which decide in which order the device works.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/psd.h"
#include "core/base/buffer.h"
#include "core/device/emulated/emulated_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/device_owner.h"

namespace psd {
namespace {

using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

// Takes all memory of the device, except one part of `room` bytes.
std::vector<std::shared_ptr<Block>> FillExcept(EmulatedDevice& device, size_t room) {
  std::shared_ptr<Block> part;
  if (room > 0) part = Must(device.memory().Allocate(room));
  std::vector<std::shared_ptr<Block>> taken;
  for (size_t bytes = size_t{16} << 20; bytes >= kBlockAlignment; bytes /= 2) {
    for (auto block = device.memory().Allocate(bytes); block.ok();
         block = device.memory().Allocate(bytes)) {
      taken.push_back(*std::move(block));
    }
  }
  return taken;
}

class FailingDeviceTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  static CreateOptions On(const std::string& device) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = device;
    return options;
  }

  DeviceOwner host_{"owner", {}, GetParam()};
  std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {host_.owner().address()});
};

INSTANTIATE_TEST_SUITE_P(Seeds, FailingDeviceTest, ::testing::Values(0, 1));

// The step finds a little more room each time, so that its memory ends at each allocation in turn.
// The second table needs more than the first.
TEST_P(FailingDeviceTest, AStepOverTablesThatFindsNoRoomChangesNothing) {
  CreateOptions there = On("emu:0"), here = On("cpu");
  there.rows = here.rows = true;
  const auto make = [&](const std::string& name, int64_t width, const CreateOptions& options) {
    return Must(trainer_->GetOrCreate("owner", name, Uniform({10, width}, -1, 1, 7), options));
  };
  const std::vector<RRef> far = {make("a", 16, there), make("b", 64, there)};
  const std::vector<RRef> near = {make("c", 16, here), make("d", 64, here)};
  auto on_device = Must(DistributedOptimizer::Create(*trainer_, Adagrad{0.1}, far));
  auto on_cpu = Must(DistributedOptimizer::Create(*trainer_, Adagrad{0.1}, near));
  const auto gradients_of = [&](const std::vector<RRef>& tables) {
    Context context = Must(trainer_->NewContext());
    const Tensor ids = Tensor::Of<int64_t>({4}, {7, 0, 5, 3});
    const auto rows = Must(trainer_->LookUpRows({{tables[0], ids}, {tables[1], ids}}, context));
    EXPECT_TRUE(context.Backward({Sum(rows[0] * rows[0]), Sum(rows[1] * rows[1])}).ok());
    return context;
  };
  const auto rows_of = [&](const std::vector<RRef>& tables) {
    const Tensor ids = Tensor::Of<int64_t>({10}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    std::vector<float> all;
    for (const Variable& rows : Must(trainer_->LookUpRows({{tables[0], ids}, {tables[1], ids}})))
      for (float element : Elements(rows.tensor())) all.push_back(element);
    return all;
  };
  const std::vector<float> before = rows_of(far);
  const Context far_gradients = gradients_of(far), near_gradients = gradients_of(near);
  absl::Status stepped;
  size_t room = 0;
  for (;; room += kBlockAlignment) {
    {
      const auto taken = FillExcept(host_.device(), room);
      stepped = on_device->Step(far_gradients);
    }
    if (stepped.ok()) break;
    ASSERT_EQ(stepped.code(), absl::StatusCode::kResourceExhausted) << stepped;
    ASSERT_EQ(rows_of(far), before) << "with room for " << room << " bytes";
  }
  EXPECT_GT(room, 0u);
  ASSERT_TRUE(on_cpu->Step(near_gradients).ok());
  EXPECT_THAT(rows_of(far), Pointwise(FloatNear(1e-5f), rows_of(near)));
}

TEST_P(FailingDeviceTest, AStepOnALostDeviceFailsAndTheCpuGoesOn) {
  const RRef w = Must(trainer_->GetOrCreate("owner", "w", Full({4}, 2), On("emu:0")));
  const RRef b = Must(trainer_->GetOrCreate("owner", "b", Full({4}, 2), On("cpu")));
  auto on_device = Must(DistributedOptimizer::Create(*trainer_, Sgd{0.1}, {w}));
  auto on_cpu = Must(DistributedOptimizer::Create(*trainer_, Sgd{0.1}, {b}));
  Context context = Must(trainer_->NewContext());
  const std::vector<Variable> here = Must(trainer_->ToHere({w, b}, context));
  ASSERT_TRUE(context.Backward({Sum(here[0]), Sum(here[1])}).ok());
  host_.device().Lose("it fell off the bus");
  const absl::Status lost = on_device->Step(context);
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("emu:0 is lost"));
  EXPECT_TRUE(on_cpu->Step(context).ok());
}

}  // namespace
}  // namespace psd
