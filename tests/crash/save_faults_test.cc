// psctl is killed while it saves, or an owner while it is saved or loaded. The last complete save
// stays, and no unfinished one is left behind by the next save.

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "client/checkpoint.h"
#include "client/psd.h"
#include "core/checkpoint/file_system.h"
#include "core/checkpoint/save_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/crash/process_world.h"
#include "tests/crash/training.h"

namespace psd::crash {
namespace {

constexpr int64_t kElements = 4 << 20;
constexpr int kParameters = 4;

// Returns how many bytes an unfinished save in `dir` has so far, or -1 if there is none.
int64_t UnfinishedBytes(const std::string& dir) {
  int64_t bytes = -1;
  std::error_code gone;  // files appear and disappear meanwhile
  for (std::filesystem::directory_iterator entry(dir, gone), end; !gone && entry != end;
       entry.increment(gone)) {
    if (!absl::StartsWith(entry->path().filename().string(), checkpoint::kUnfinishedPrefix))
      continue;
    bytes = std::max<int64_t>(bytes, 0);
    std::error_code none;
    for (std::filesystem::directory_iterator file(entry->path(), none); !none && file != end;
         file.increment(none)) {
      const auto size = static_cast<int64_t>(file->file_size(none));
      if (!none) bytes += size;
    }
  }
  return bytes;
}

// The parameter says whether owners write their own files.
class SaveFaultsTest : public ::testing::TestWithParam<bool> {
 protected:
  SaveFaultsTest() {
    for (int i = 0; i < kParameters; ++i)
      MakeParameter(*worker_, "owner0", "w" + std::to_string(i),
                    Must(Tensor::Full(Shape{kElements}, DType::kF32, i)));
  }
  ~SaveFaultsTest() override { std::filesystem::remove_all(dir_); }

  std::vector<std::string> SaveCommand() {
    return {"tools/cli/psctl", "save", dir_, "--address", daemon_.address().address};
  }
  std::string Latest() { return Must(checkpoint::FindSave(*files_, dir_)); }

  static std::string EmptyFolder() {
    const std::string path = ::testing::TempDir() + "/save_faults";
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
    return path;
  }
  DaemonOptions Owner() const {
    DaemonOptions options;
    if (GetParam()) options.checkpoint_root = dir_;
    return options;
  }

  const std::string dir_ = EmptyFolder();
  const std::shared_ptr<checkpoint::FileSystem> files_ = checkpoint::FileSystem::Posix();
  Daemon daemon_{Owner()};
  std::unique_ptr<Worker> worker_ =
      Must(Worker::Start(TrainerOptions("trainer", {daemon_.address()})));
};

INSTANTIATE_TEST_SUITE_P(Ways, SaveFaultsTest, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Own" : "Streamed"; });

TEST_P(SaveFaultsTest, KilledWhileSaving) {
  Process(SaveCommand()).WaitForLine("saved 4 values");
  std::string good = Latest();
  for (const int64_t at : {50 << 20, 20 << 20, 1 << 20, 0}) {
    Process saving(SaveCommand());
    // The save may be complete before the test notices its size.
    ASSERT_TRUE(Eventually([&] { return UnfinishedBytes(dir_) >= at || Latest() != good; }));
    saving.Kill();
    if (UnfinishedBytes(dir_) >= 0) {
      EXPECT_EQ(Latest(), good) << "killed after " << at << " bytes";
    }
    good = Latest();
    LoadOptions load;
    load.dir = dir_;
    const auto loaded = LoadModel(*worker_, load);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
  }
  Process(SaveCommand()).WaitForLine("saved 4 values");
  EXPECT_NE(Latest(), good);
  EXPECT_EQ(UnfinishedBytes(dir_), -1);
}

TEST_P(SaveFaultsTest, TheOwnerIsKilledWhileSaving) {
  Process(SaveCommand()).WaitForLine("saved 4 values");
  const std::string good = Latest();
  SaveOptions save;
  save.dir = dir_;
  save.batch_bytes = 1 << 20;
  save.progress = [&](const TransferProgress&) {
    if (daemon_.process().running()) daemon_.process().Kill();
    return true;
  };
  const absl::Status broken = SaveModel(*worker_, save).status();
  EXPECT_FALSE(broken.ok());
  EXPECT_THAT(std::string(broken.message()), ::testing::HasSubstr("saving owner0"));
  if (GetParam()) {
    EXPECT_THAT(std::string(broken.message()), ::testing::HasSubstr("values-owner0.safetensors"));
  }
  EXPECT_EQ(Latest(), good);
  EXPECT_EQ(UnfinishedBytes(dir_), -1);
  daemon_.Restart();
  auto again = Must(Worker::Start(TrainerOptions("trainer2", {daemon_.address()})));
  LoadOptions load;
  load.dir = dir_;
  EXPECT_EQ(Must(LoadModel(*again, load)).values.at("owner0"), 4u);
  const auto values = Must(again->ToHere({Must(again->Lookup("owner0", "w3"))}));
  EXPECT_EQ(values[0].As<Variable>()->tensor().data<float>()[kElements - 1], 3);
}

TEST_P(SaveFaultsTest, TheOwnerIsKilledWhileLoading) {
  SaveOptions save;
  save.dir = dir_;
  Must(SaveModel(*worker_, save));
  const std::string good = Latest();
  for (const uint64_t whole_bytes : {uint64_t{256} << 20, uint64_t{1} << 20}) {  // whole, in pieces
    auto loader = Must(Worker::Start(TrainerOptions("loader", {daemon_.address()})));
    LoadOptions load;
    load.dir = dir_;
    load.batch_bytes = 1 << 20;
    load.whole_bytes = whole_bytes;
    load.timeout = absl::Seconds(20);
    load.progress = [&](const TransferProgress& progress) {
      if (progress.bytes > 0 && daemon_.process().running()) daemon_.process().Kill();
      return true;
    };
    const absl::Status broken = LoadModel(*loader, load).status();
    EXPECT_FALSE(broken.ok());
    EXPECT_THAT(std::string(broken.message()), ::testing::HasSubstr("owner0"));
    EXPECT_EQ(Latest(), good);
    daemon_.Restart();
  }
  auto again = Must(Worker::Start(TrainerOptions("trainer2", {daemon_.address()})));
  LoadOptions load;
  load.dir = dir_;
  EXPECT_EQ(Must(LoadModel(*again, load)).values.at("owner0"), 4u);
  const auto values = Must(again->ToHere({Must(again->Lookup("owner0", "w2"))}));
  EXPECT_EQ(values[0].As<Variable>()->tensor().data<float>()[kElements - 1], 2);
}

}  // namespace
}  // namespace psd::crash
