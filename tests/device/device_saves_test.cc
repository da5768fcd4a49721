// Saves and loads of the state of every dense optimizer, on a device and on the CPU: a model that
// is loaded on either goes on as one that was never interrupted there.

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/checkpoint.h"
#include "client/psd.h"
#include "core/runtime/runtime.h"
#include "core/tensor/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/checkpoint/fake_file_system.h"
#include "tests/core/checkpoint/fake_root.h"
#include "tests/device/dense_optimizers.h"
#include "tests/device/device_under_test.h"
#include "tests/device/owner_under_test.h"
#include "tests/kernels/cpu_fuses.h"

namespace psd {
namespace {

using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Ne;
using ::testing::Not;
using ::testing::Pointwise;

constexpr int kStepsBefore = 3;
constexpr int kStepsAfter = 3;

using Disk = std::shared_ptr<checkpoint::FakeFileSystem>;

// An owner with a device, and a trainer with a model on this device or on the owner's CPU: a
// parameter of f32 and one of bf16 that is rounded at random, which are groups of one optimizer.
class Job {
 public:
  // `own`: the owner writes its files of saves itself.
  Job(const OptimizerSpec& spec, const std::string& device, const Disk& disk, bool own)
      : spec_(spec), disk_(disk), host_("owner", Options(disk, own)) {
    groups_[1].options = {{"stochastic_rounding", 1}};
    for (size_t i = 0; i < groups_.size(); ++i) {
      const std::string name = i == 0 ? "f32" : "bf16";
      const DType dtype = i == 0 ? DType::kF32 : DType::kBF16;
      rrefs_.push_back(testing::MakeOn(*trainer_, device, name, 1100, dtype));
      groups_[i].parameters = {rrefs_[i]};
    }
  }

  // Creates the optimizer, or joins the one that was loaded.
  void Join() {
    optimizer_ = Must(DistributedOptimizer::Create(*trainer_, "main", spec_, groups_));
  }
  // Makes step number `i` for the loss sum(w * w * c) of both parameters, computed in f32; c is
  // different each time.
  void Step(int i) {
    const double c = (i % 2 == 0 ? 0.5 : -1) + 0.125 * i;
    const absl::Status stepped = testing::StepSquares(*trainer_, rrefs_, *optimizer_, c);
    ASSERT_TRUE(stepped.ok()) << stepped;
  }
  std::vector<float> Read() { return testing::ReadAsFloats(*trainer_, rrefs_); }
  void Save() {
    SaveOptions saving;
    saving.dir = "saves";
    saving.files = disk_;
    const SaveSummary saved = Must(SaveModel(*trainer_, saving));
    EXPECT_EQ(saved.values, 2u);
    EXPECT_EQ(saved.optimizers, 1u);
  }
  // Loads the save into the parameters, which stay on their device.
  void Load() {
    const std::string before = Kinds();
    LoadOptions loading;
    loading.dir = "saves";
    loading.files = disk_;
    Must(LoadModel(*trainer_, loading));
    EXPECT_EQ(Kinds(), before);
  }

 private:
  static worker::RuntimeOptions Options(const Disk& disk, bool own) {
    worker::RuntimeOptions options;
    if (own) options.checkpoint_root = std::make_shared<checkpoint::FakeRoot>(disk);
    return options;
  }
  // Returns what the owner says of both parameters, and so on which device they are.
  std::string Kinds() {
    std::string kinds;
    for (const char* name : {"f32", "bf16"})
      absl::StrAppend(&kinds, Must(trainer_->List("owner", name))[0].kind, "; ");
    return kinds;
  }

  const OptimizerSpec spec_;
  const Disk disk_;
  OwnerUnderTest host_;
  const std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {host_.owner().address()});
  std::vector<ParameterGroup> groups_{2};
  std::vector<RRef> rrefs_;
  std::unique_ptr<DistributedOptimizer> optimizer_;
};

// A run that is not interrupted, and its save.
struct Training {
  Disk disk = std::make_shared<checkpoint::FakeFileSystem>();
  std::vector<float> at_save, at_end;
};

Training TrainAndSave(const OptimizerSpec& spec, const std::string& device, bool own) {
  Training run;
  Job job(spec, device, run.disk, own);
  job.Join();
  for (int i = 0; i < kStepsBefore; ++i) job.Step(i);
  job.Save();
  run.at_save = job.Read();
  for (int i = 0; i < kStepsAfter; ++i) job.Step(kStepsBefore + i);
  run.at_end = job.Read();
  return run;
}

// The state is f32 for both parameters.
void ExpectStateOfFloats(const checkpoint::FakeFileSystem& disk) {
  size_t files = 0;
  for (const auto& [path, bytes] : disk.files()) {
    if (bytes.find("\"state.0.") == std::string::npos || path.find(".json") != std::string::npos)
      continue;
    ++files;
    EXPECT_THAT(bytes, HasSubstr("F32")) << path;
    EXPECT_THAT(bytes, Not(HasSubstr("BF16"))) << path;
  }
  EXPECT_GT(files, 0u);
}

// The steps of a device have the bits of the CPU's where the CPU's kernels fuse.
void ExpectSame(const std::vector<float>& got, const std::vector<float>& want, bool exact) {
  if (exact) {
    EXPECT_EQ(got, want);
  } else {
    EXPECT_THAT(got, Pointwise(FloatNear(1.0f / 16), want));
  }
}

class DeviceSavesTest : public testing::OnDevice<::testing::TestWithParam<bool>> {};

INSTANTIATE_TEST_SUITE_P(Ways, DeviceSavesTest, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Own" : "Streamed"; });

TEST_P(DeviceSavesTest, EveryOptimizerGoesOnWhereItIsLoaded) {
  const std::vector<std::string> devices = {testing::NameOfDevice(), "cpu"};
  for (const OptimizerSpec& spec : testing::DenseOptimizers()) {
    std::map<std::string, Training> runs;
    for (const std::string& device : devices) {
      runs[device] = TrainAndSave(spec, device, GetParam());
      EXPECT_THAT(runs[device].at_end, Ne(runs[device].at_save)) << spec.type;
      ExpectStateOfFloats(*runs[device].disk);
    }
    for (const std::string& from : devices) {
      for (const std::string& to : devices) {
        if (from == "cpu" && to == "cpu") continue;  // has tests of its own
        SCOPED_TRACE(absl::StrCat(spec.type, " from ", from, " to ", to));
        Job job(spec, to, runs[from].disk, GetParam());
        job.Load();
        EXPECT_EQ(job.Read(), runs[from].at_save);
        job.Join();
        for (int i = 0; i < kStepsAfter; ++i) job.Step(kStepsBefore + i);
        ExpectSame(job.Read(), runs[to].at_end, from == to || testing::CpuFuses());
      }
    }
  }
}

}  // namespace
}  // namespace psd
