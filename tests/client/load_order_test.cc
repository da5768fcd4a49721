// The messages of a load may reach an owner in any order.

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/checkpoint.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/runtime/runtime.h"
#include "core/services/checkpoint/checkpoint_import.h"
#include "core/services/checkpoint/checkpoint_service.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/services/values/value_service.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/checkpoint/fake_file_system.h"

namespace psd {
namespace {

constexpr int64_t kRows = 10;

// Five rows of zeros from row `first` on, with a momentum of 1 in the state of "main".
services::ImportItem Half(int64_t first) {
  services::ImportItem item;
  item.name = "table";
  item.first_row = first;
  item.elements = Must(Tensor::Full(Shape{kRows / 2, 2}, DType::kF32, 0));
  item.states.push_back(
      {"main", 3, {"momentum_buffer"}, {Must(Tensor::Full(Shape{kRows / 2, 2}, DType::kF32, 1))}});
  return item;
}

// The momentum of a row moves it in steps that have no gradient for it. An owner can tell which
// rows are concerned only when it has all of the state.
TEST(LoadOrder, TheMomentumOfRowsComesBackWhicheverRowsComeLast) {
  for (const std::vector<int64_t>& order : {std::vector<int64_t>{0, 5}, {5, 0}}) {
    TestOwner owner("owner");
    auto trainer = StartTrainer("trainer", {owner.address()});
    CreateOptions rows;
    rows.rows = true;
    rows.requires_grad = true;
    const RRef table = Must(trainer->GetOrCreate("owner", "table", Zeros(Shape{kRows, 2}), rows));
    auto optimizer = Must(DistributedOptimizer::Create(*trainer, "main", Sgd{1, 0.5}, {table}));
    services::CheckpointService& service = RuntimeOf(*trainer).checkpoints();
    for (int64_t first : order) {
      const absl::Status imported = service.Import("owner", {Half(first)}, {}, {}).Wait().status();
      ASSERT_TRUE(imported.ok()) << imported;
    }
    const optim::PartReport part =
        Must(RuntimeOf(*trainer).optimizer_service().Part("owner", "main", {}).Wait());
    const absl::Status restored =
        service.Import("owner", {}, {{"main", 3, 0, 0, false, part.life}}, {}).Wait().status();
    ASSERT_TRUE(restored.ok()) << restored;

    Context context = Must(trainer->NewContext());
    const Tensor last = Tensor::Of<int64_t>(Shape{1}, {kRows - 1});
    auto looked_up = Must(trainer->LookUpRows({{table, last}}, context));
    ASSERT_TRUE(context.Backward({Sum(looked_up[0] * looked_up[0])}).ok());
    ASSERT_TRUE(optimizer->Step(context).ok());
    for (int64_t row = 0; row < kRows; ++row) {
      const Tensor id = Tensor::Of<int64_t>(Shape{1}, {row});
      const auto now = Elements(Must(trainer->LookUpRows({{table, id}}))[0].tensor());
      EXPECT_EQ(now, (std::vector<float>{-0.5f, -0.5f}))
          << "row " << row << ", rows from " << order[0] << " first";
    }
  }
}

// Another worker creates a value of the same name between the request of the load and its claims.
TEST(LoadOrder, AValueThatIsMadeMeanwhileIsNotReplaced) {
  TestOwner owner("owner");
  worker::Runtime& runtime = owner.runtime();
  auto trainer = StartTrainer("trainer", {owner.address()});
  CreateOptions parameter;
  parameter.requires_grad = true;
  services::Incoming fresh;
  fresh.name = "fresh";
  fresh.elements = Must(Tensor::Full(Shape{2}, DType::kF32, 7));
  Must(trainer->GetOrCreate("owner", "fresh", Zeros(Shape{2}), parameter));
  EXPECT_EQ(services::MakeValue(runtime.changes(), runtime.rrefs(), fresh).code(),
            absl::StatusCode::kAborted);

  services::Incoming replaced = fresh;
  replaced.name = "replaced";
  Must(trainer->GetOrCreate("owner", "replaced", Zeros(Shape{2}), {}));
  replaced.entry = *runtime.store().Lookup("replaced");
  EXPECT_TRUE(services::MakeValue(runtime.changes(), runtime.rrefs(), replaced).ok());
  ASSERT_TRUE(runtime.values().DropHere("replaced").ok());
  Must(trainer->GetOrCreate("owner", "replaced", Zeros(Shape{2}), parameter));
  EXPECT_EQ(services::MakeValue(runtime.changes(), runtime.rrefs(), replaced).code(),
            absl::StatusCode::kFailedPrecondition);
  for (const char* name : {"fresh", "replaced"}) {
    const auto now = runtime.store().Lookup(name);
    EXPECT_TRUE(now.ok() && (*now)->parameter != nullptr) << name << " is no more";
  }
}

class StoppedLoad : public ::testing::Test {
 protected:
  TestOwner owner_{"owner"};
  std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {owner_.address()});
  const RRef w_ = MakeParameter(*trainer_, "owner", "w", Tensor::Of<float>(Shape{2}, {1, 1}));
};

// An import that is applied later could replace what the next load brings.
TEST_F(StoppedLoad, ItsImportsHaveEndedWhenItReturns) {
  const auto disk = std::make_shared<checkpoint::FakeFileSystem>();
  SaveOptions saving;
  saving.dir = "saves";
  saving.files = disk;
  Must(SaveModel(*trainer_, saving));
  Must(trainer_->Assign(w_, Tensor::Of<float>(Shape{2}, {5, 5})));

  auto held = std::make_unique<HeldParameter>(owner_, w_);
  std::thread releases;
  LoadOptions loading;
  loading.dir = "saves";
  loading.files = disk;
  loading.progress = [&](const TransferProgress& progress) {
    if (progress.activity != "loading") return true;
    releases = std::thread([&] {
      absl::SleepFor(absl::Milliseconds(50));  // a load that does not wait returns meanwhile
      held.reset();
    });
    return false;
  };
  const absl::Status stopped = LoadModel(*trainer_, loading).status();
  EXPECT_EQ(Read(*trainer_, w_), (std::vector<float>{1, 1})) << "its import is still under way";
  EXPECT_EQ(stopped.code(), absl::StatusCode::kCancelled) << stopped;
  releases.join();
}

TEST_F(StoppedLoad, AnImportThatWasGivenUpIsNotAppliedLater) {
  services::CheckpointService& service = RuntimeOf(*trainer_).checkpoints();
  {
    const HeldParameter held(owner_, w_);
    services::ImportItem item;
    item.name = "w";
    item.elements = Tensor::Of<float>(Shape{2}, {5, 5});
    rpc::CallOptions brief;
    brief.timeout = absl::Milliseconds(50);
    EXPECT_EQ(service.Import("owner", {item}, {}, brief).Wait().status().code(),
              absl::StatusCode::kDeadlineExceeded);
    Must(service.Describe("owner", {}).Wait());  // after the cancel of the import
  }
  const HeldParameter after(owner_, w_);  // after the turn of the import
  EXPECT_EQ(Read(*trainer_, w_), (std::vector<float>{1, 1}));
}

}  // namespace
}  // namespace psd
