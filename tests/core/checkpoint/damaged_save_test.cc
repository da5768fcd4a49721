// In every file of a small save, each flipped bit, each truncation and each additional byte is
// detected.

#include <map>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "core/base/status.h"
#include "core/checkpoint/save_folder.h"
#include "core/checkpoint/save_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/checkpoint/fake_file_system.h"

namespace psd::checkpoint {
namespace {

constexpr char kValues[] = "values-owner0.safetensors";
constexpr char kState[] = "state-owner0-0.safetensors";

SavedOptimizer Momentum() {
  SavedOptimizer sgd;
  sgd.name = "main";
  sgd.type = "sgd";
  sgd.groups = {{{{"lr", 0.001}}, {{"lr", 0.001}}}};
  sgd.steps_accepted = 6;
  sgd.parts = {{"owner0", "00000000000000aa/12", 6}};
  sgd.parameters.push_back({"owner0", "w", 0, 6, {{"momentum_buffer", kState}}, kState});
  return sgd;
}

SavedValue Weight() {
  SavedValue value;
  value.owner = "owner0";
  value.name = "w";
  value.shape = Shape{2};
  value.requires_grad = true;
  value.version = 7;
  value.file = kValues;
  return value;
}

// Saves a parameter of two elements and the state of its optimizer.
absl::Status Save(const std::shared_ptr<FileSystem>& files, const std::string& name) {
  PSD_ASSIGN_OR_RETURN(auto save, SaveFolder::Begin(files, "d", name, "u", 16));
  PSD_ASSIGN_OR_RETURN(auto values, save->Create({kValues, {{"w", DType::kF32, Shape{2}}}}));
  PSD_RETURN_IF_ERROR(values->AppendBytes("12345678"));
  const TensorSpec momentum{StateTensorName(0, "momentum_buffer"), DType::kF32, Shape{2}};
  const TensorSpec step{StateTensorName(0, kStepSlot), DType::kF32, Shape{}};
  PSD_ASSIGN_OR_RETURN(auto state, save->Create({kState, {momentum, step}}));
  PSD_RETURN_IF_ERROR(state->AppendBytes("abcdefgh"));
  PSD_RETURN_IF_ERROR(state->AppendBytes("step"));
  CheckpointIndex index;
  for (TensorFile* file : {values.get(), state.get()}) {
    PSD_ASSIGN_OR_RETURN(SavedFile saved, file->Finish());
    index.files.push_back(saved);
  }
  index.values = {Weight()};
  index.optimizers = {Momentum()};
  return save->Publish(index).status();
}

// Checks a save as a load does before it changes anything.
absl::Status Check(const std::shared_ptr<FileSystem>& files) {
  PSD_ASSIGN_OR_RETURN(std::string folder, FindSave(*files, "d"));
  PSD_ASSIGN_OR_RETURN(auto reader, SaveReader::Open(files, folder));
  return reader->Verify(nullptr);
}

class DamagedSave : public ::testing::Test {
 protected:
  void SetUp() override {
    // The names of the two saves differ in one bit. The first one stays undamaged.
    for (const char* name : {"3", "1"}) {
      const absl::Status saved = Save(disk_, name);
      ASSERT_TRUE(saved.ok()) << saved;
    }
    for (const auto& [path, bytes] : disk_->files())
      if (!absl::StartsWith(path, "d/3/")) whole_[path] = bytes;
    ASSERT_EQ(whole_.size(), 4u) << "two files of tensors, the index, and `latest`";
    ASSERT_TRUE(Check(disk_).ok());
  }

  // Calls `damage` with every file and its bytes, and restores the file afterwards.
  template <typename Damage>
  void InEveryFile(Damage damage) {
    for (const auto& [path, bytes] : whole_) {
      damage(path, bytes);
      disk_->Put(path, bytes);
    }
    EXPECT_TRUE(Check(disk_).ok()) << "all is as it was";
  }

  const std::shared_ptr<FakeFileSystem> disk_ = std::make_shared<FakeFileSystem>();
  std::map<std::string, std::string> whole_;
};

TEST_F(DamagedSave, EveryFlippedBitIsFound) {
  InEveryFile([&](const std::string& path, const std::string& bytes) {
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      std::string flipped = bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      disk_->Put(path, flipped);
      ASSERT_FALSE(Check(disk_).ok()) << "bit " << bit % 8 << " of byte " << bit / 8 << ", '"
                                      << bytes[bit / 8] << "', of " << path;
    }
  });
}

TEST_F(DamagedSave, EveryTruncationIsFound) {
  InEveryFile([&](const std::string& path, const std::string& bytes) {
    for (size_t left = 0; left < bytes.size(); ++left) {
      disk_->Put(path, bytes.substr(0, left));
      ASSERT_FALSE(Check(disk_).ok()) << left << " bytes of " << path;
    }
  });
}

TEST_F(DamagedSave, EveryByteTooManyIsFound) {
  InEveryFile([&](const std::string& path, const std::string& bytes) {
    for (int more = 0; more < 256; ++more) {
      disk_->Put(path, bytes + static_cast<char>(more));
      ASSERT_FALSE(Check(disk_).ok()) << "byte " << more << " after the end of " << path;
    }
  });
}

}  // namespace
}  // namespace psd::checkpoint
