// The journal of an owner that hosts parameters on an emulated device, and its replay on owners
// with and without that device. The tests run with several seeds, which decide in which order the
// device works.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/checkpoint.h"
#include "client/psd.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/change/change.h"
#include "core/change/replay.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/change/memory_journal.h"
#include "tests/core/change/workload.h"
#include "tests/core/checkpoint/fake_file_system.h"
#include "tests/device/device_owner.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Records where the gradients of steps are.
class LookingJournal : public change::MemoryJournal {
 public:
  void Append(const change::Change& change) override {
    if (const auto* step = std::get_if<const optim::StepChange*>(&change)) {
      for (const optim::ParameterGradient& each : (*step)->plan->gradients) {
        EXPECT_TRUE(each.rows != nullptr || each.gradient->OnHost());
        ++gradients;
      }
    }
    MemoryJournal::Append(change);
  }
  std::atomic<int> gradients{0};
};

class DeviceJournalTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  static worker::RuntimeOptions With(std::shared_ptr<change::Journal> journal) {
    worker::RuntimeOptions options;
    options.journal = std::move(journal);
    return options;
  }
  static CreateOptions On(const std::string& device, bool rows = false) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = device;
    options.rows = rows;
    return options;
  }
  RRef Make(const std::string& name, const CreateOptions& options) {
    return Must(trainer_->GetOrCreate("owner", name, Uniform({6, 3}, -1, 1, 7), options));
  }
  // Replays the journal on an owner without devices, which refuses the creation of `name`.
  void ExpectRefusedWithoutTheDevice(const std::string& name) {
    change::LocalOwner plain(nullptr, 4711);
    const absl::Status refused = change::ReplayAll(journal_->bytes(), plain.ForReplay());
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("record 1"), HasSubstr(name), HasSubstr("'emu:0'"),
                      HasSubstr("the devices are cpu")));
  }

  const std::shared_ptr<LookingJournal> journal_ = std::make_shared<LookingJournal>();
  DeviceOwner host_{"owner", With(journal_), GetParam()};
  std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {host_.owner().address()});
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceJournalTest, ::testing::Values(0, 1));

TEST_P(DeviceJournalTest, AReplayGivesAnOwnerWithTheDeviceTheSameBits) {
  const RRef w = Make("w", On("emu:0")), b = Make("b", On("cpu"));
  const RRef table = Make("table", On("emu:0", /*rows=*/true));
  auto dense = Must(DistributedOptimizer::Create(*trainer_, "dense", Adam{0.1}, {w, b}));
  auto rows = Must(DistributedOptimizer::Create(*trainer_, "rows", Adagrad{0.1}, {table}));
  const auto step = [&] {
    Context context = Must(trainer_->NewContext());
    const auto here = Must(trainer_->ToHere({w, b}, context));
    const Tensor ids = Tensor::Of<int64_t>({3}, {4, 0, 4});
    const Variable found = Must(trainer_->LookUpRows({{table, ids}}, context))[0];
    ASSERT_TRUE(
        context.Backward({Sum(here[0] * here[0]), Sum(here[1] * here[1]), Sum(found * found)})
            .ok());
    for (DistributedOptimizer* each : {dense.get(), rows.get()}) {
      const absl::Status stepped = each->Step(context);
      ASSERT_TRUE(stepped.ok()) << stepped;
    }
  };
  step();
  SaveOptions save;
  save.dir = "saves";
  save.files = std::make_shared<checkpoint::FakeFileSystem>();
  Must(SaveModel(*trainer_, save));
  step();
  Must(trainer_->Assign(w, *Tensor::Full({6, 3}, DType::kF32, 2)));
  Must(trainer_->Assign(table, *Tensor::Full({6, 3}, DType::kF32, 3)));
  step();
  LoadOptions load;
  load.dir = save.dir;
  load.files = save.files;
  Must(LoadModel(*trainer_, load));
  dense = Must(DistributedOptimizer::Create(*trainer_, "dense", Adam{0.1}, {w, b}));
  rows = Must(DistributedOptimizer::Create(*trainer_, "rows", Adagrad{0.1}, {table}));
  step();
  EXPECT_EQ(journal_->gradients, 4 * 3);
  EXPECT_EQ(journal_->count<change::LoadValue>(), 3u);

  DeviceOwner again("again");
  worker::Runtime& runtime = again.owner().runtime();
  const program::ProgramLimits limits;
  const absl::Status replayed = change::ReplayAll(
      journal_->bytes(), {runtime.store(), runtime.changes(), runtime.operators(), limits});
  ASSERT_TRUE(replayed.ok()) << replayed;
  const std::string contents = change::TextOf(host_.owner().runtime().store());
  EXPECT_THAT(contents, AllOf(HasSubstr("on emu:0"), HasSubstr("exp_avg")));
  EXPECT_EQ(change::TextOf(runtime.store()), contents);
}

TEST_P(DeviceJournalTest, AnOwnerWithoutTheDeviceNamesIt) {
  Make("w", On("emu:0"));
  ExpectRefusedWithoutTheDevice("w");
}

TEST_P(DeviceJournalTest, AnOwnerWithoutTheDeviceOfATableNamesIt) {
  Make("table", On("emu:0", /*rows=*/true));
  ExpectRefusedWithoutTheDevice("table");
}

TEST_P(DeviceJournalTest, ARecordNamesTheDeviceThatTheOwnerChose) {
  Make("w", On(kAutoDevice));
  ExpectRefusedWithoutTheDevice("w");
}

TEST_P(DeviceJournalTest, ARecordNamesTheDeviceThatTheOwnerChoseForATable) {
  Make("table", On(kAutoDevice, /*rows=*/true));
  ExpectRefusedWithoutTheDevice("table");
}

// A step that the device fails has changed nothing, so there is nothing to describe.
TEST_P(DeviceJournalTest, AStepThatFailsIsNotDescribed) {
  const RRef w = Make("w", On("emu:0"));
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Adam{0.1}, {w}));
  Context context = Must(trainer_->NewContext());
  const Variable here = Must(trainer_->ToHere({w}, context))[0];
  ASSERT_TRUE(context.Backward({Sum(here)}).ok());
  host_.device().Lose("it fell off the bus");
  const absl::Status lost = optimizer->Step(context);
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  EXPECT_EQ(journal_->count<optim::StepChange>(), 0u);
}

// The kernel of the step fails while it runs, when the step has given up its thread.
TEST_P(DeviceJournalTest, AStepThatFailsOnTheDeviceIsNeitherAnsweredNorDescribed) {
  const RRef w = Make("w", On("emu:0")), b = Make("b", On("cpu"));
  auto there = Must(DistributedOptimizer::Create(*trainer_, Adam{0.1}, {w}));
  auto here = Must(DistributedOptimizer::Create(*trainer_, Adam{0.1}, {b}));
  Context context = Must(trainer_->NewContext());
  const std::vector<Variable> pulled = Must(trainer_->ToHere({w, b}, context));
  ASSERT_TRUE(context.Backward({Sum(pulled[0]), Sum(pulled[1])}).ok());
  host_.device().FailOperation(2);  // the first one copies the gradient
  const absl::Status lost = there->Step(context);
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  EXPECT_THAT(std::string(lost.message()), AllOf(HasSubstr("emu:0"), HasSubstr("adam")));
  EXPECT_EQ(journal_->count<optim::StepChange>(), 0u);
  const absl::Status read = trainer_->Pull({w}).status();
  EXPECT_EQ(read.code(), absl::StatusCode::kUnavailable) << read;
  EXPECT_THAT(std::string(read.message()), HasSubstr("emu:0"));
  EXPECT_EQ(there->Step(context).code(), absl::StatusCode::kUnavailable);
  const absl::Status stepped = here->Step(context);
  EXPECT_TRUE(stepped.ok()) << stepped;
  EXPECT_EQ(journal_->count<optim::StepChange>(), 1u);
}

}  // namespace
}  // namespace psd
