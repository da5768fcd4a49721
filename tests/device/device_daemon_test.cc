// A daemon that was started with --devices, and a trainer, as two processes.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/device_loans/device_loans.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/status.pb.h"
#include "tests/client/test_world.h"
#include "tests/crash/process_world.h"
#include "tests/device/test_device.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using ::testing::SizeIs;

crash::DaemonOptions With(const std::string& devices) {
  crash::DaemonOptions options;
  options.devices = devices;
  return options;
}

class DeviceDaemonTest : public ::testing::Test {
 protected:
  // Makes three steps of `optimizer` for the loss sum(w * w).
  void Train(DistributedOptimizer& optimizer, const std::vector<RRef>& parameters) {
    for (int i = 0; i < 3; ++i) {
      Context context = Must(trainer_->NewContext());
      std::vector<Variable> losses;
      for (const Variable& w : Must(trainer_->ToHere(parameters, context)))
        losses.push_back(Sum(w * w));
      ASSERT_TRUE(context.Backward(losses).ok());
      const absl::Status stepped = optimizer.Step(context);
      ASSERT_TRUE(stepped.ok()) << stepped;
    }
  }

  crash::Daemon daemon_{With("emu:0=8MiB,emu:1=4MiB")};
  std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {daemon_.address()});
};

TEST_F(DeviceDaemonTest, AParameterThereIsSteppedAndPulledLikeOneOfTheCpu) {
  std::vector<RRef> parameters;
  for (const char* device : {"cpu", "emu:1", "auto"}) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = device;
    parameters.push_back(
        Must(trainer_->GetOrCreate("owner0", device, Uniform({100, 7}, -1, 1, 7), options)));
  }
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Adam{0.1}, parameters));
  const std::vector<float> before = Read(*trainer_, parameters[0]);
  Train(*optimizer, parameters);
  const std::vector<PulledParameter> pulled = Must(trainer_->Pull(parameters));
  const std::vector<float> on_cpu = Elements(pulled[0].elements);
  EXPECT_NE(on_cpu, before);
  for (size_t i : {1, 2}) {
    EXPECT_EQ(pulled[i].version, pulled[0].version);
    EXPECT_THAT(Elements(pulled[i].elements), Pointwise(FloatNear(1e-5f), on_cpu)) << i;
  }

  const v1::WorkerStatus status = Must(crash::StatusOf(*trainer_, "owner0"));
  ASSERT_EQ(status.devices_size(), 2);
  EXPECT_GT(status.devices(0).used_bytes(), 0u) << "the parameter called auto";
  EXPECT_EQ(status.devices(0).budget_bytes(), size_t{8} << 20);
  EXPECT_EQ(status.devices(1).budget_bytes(), size_t{4} << 20);
  crash::Process psctl(
      {"tools/cli/psctl", "status", "--timeout", "60s", "--address", daemon_.address().address});
  EXPECT_THAT(psctl.WaitForLine("emu:0 "), HasSubstr("8 MiB"));
  EXPECT_THAT(psctl.WaitForLine("emu:1 "), HasSubstr("4 MiB"));
  EXPECT_THAT(psctl.WaitForLine("auto "), HasSubstr(" emu:0 "));
  EXPECT_THAT(psctl.WaitForLine("cpu "), HasSubstr(" cpu "));
  EXPECT_THAT(psctl.WaitForLine("emu:1 "), AllOf(HasSubstr("parameter"), HasSubstr(" emu:1 ")));
  optimizer.reset();
  trainer_.reset();
  EXPECT_EQ(daemon_.process().Terminate(), 0);
}

// The trainer and the daemon are two processes on one device.

crash::DaemonOptions Sharing() {
  crash::DaemonOptions options = With("emu:0=64MiB");
  options.share_devices = true;
  return options;
}

WorkerOptions SharingWith(const crash::Daemon& daemon) {
  WorkerOptions options;
  options.name = "trainer";
  options.owners = {daemon.address()};
  options.devices = {testing::NewSharedTestDevice(/*seed=*/0)};
  options.share_devices = true;
  return options;
}

TEST(SharedDeviceDaemonTest, ATrainerReadsTheDaemonsMemoryInPlace) {
  crash::Daemon daemon(Sharing());
  const WorkerOptions options = SharingWith(daemon);
  const auto trainer = Must(Worker::Start(options));
  CreateOptions on_device;
  on_device.device = "emu:0";
  const RRef w = Must(trainer->GetOrCreate("owner0", "w", Full({1'000'000}, 3), on_device));
  CallOptions there;
  there.device = "emu:0";
  Tensor pulled = Must(trainer->Pull({w}, there))[0].elements;
  EXPECT_EQ(options.devices[0]->used_bytes(), 0u);
  const auto first = [&pulled] { return Elements(Must(pulled.ToHost()))[0]; };
  EXPECT_EQ(first(), 3);
  for (int i = 0; i < 3; ++i)
    Must(trainer->Assign(w, Must(Tensor::Full({1'000'000}, DType::kF32, 7))));
  EXPECT_EQ(first(), 3);

  const v1::WorkerStatus status = Must(crash::StatusOf(*trainer, "owner0"));
  std::string how;
  for (const v1::PeerState& peer : status.peers())
    if (peer.name() == "trainer") how = peer.device_memory();
  EXPECT_EQ(how, "in place; its process has borrowed 4000000 bytes in 1 blocks");
  crash::Process psctl(
      {"tools/cli/psctl", "status", "--timeout", "60s", "--address", daemon.address().address});
  EXPECT_THAT(psctl.WaitForLine("trainer "), HasSubstr("in place"));

  // The trainer goes on after the end of the daemon.
  daemon.process().Kill();
  EXPECT_EQ(first(), 3);
  pulled = Tensor();
}

TEST(SharedDeviceDaemonTest, ADaemonReadsGradientsOfTheTrainerInPlaceUntilItIsKilled) {
  crash::Daemon daemon(Sharing());
  const auto trainer = Must(Worker::Start(SharingWith(daemon)));
  CreateOptions on_device;
  on_device.device = "emu:0";
  on_device.requires_grad = true;
  const RRef w = Must(trainer->GetOrCreate("owner0", "w", Full({1'000'000}, 3), on_device));
  auto optimizer = Must(DistributedOptimizer::Create(*trainer, Sgd{0.5}, {w}));
  Context context = Must(trainer->NewContext());
  CallOptions there;
  there.device = "emu:0";
  there.context = &context;
  const Variable here = *Must(trainer->ToHere({w}, there))[0].As<Variable>();
  const absl::Status back = context.Backward({Sum(here * here)});
  ASSERT_TRUE(back.ok()) << back;
  ASSERT_TRUE(optimizer->Step(context).ok());
  EXPECT_EQ(Read(*trainer, w)[0], 0);
  device_loans::DeviceLoans& loans = RuntimeOf(*trainer).loans();
  ASSERT_THAT(loans.lent(), SizeIs(1));
  EXPECT_EQ(loans.lent()[0].bytes, 4'000'000u);
  daemon.process().Kill();
  while (!loans.lent().empty()) std::this_thread::yield();
}

}  // namespace
}  // namespace psd
