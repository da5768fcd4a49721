#include "core/services/checkpoint/save_table.h"

#include <memory>

#include "absl/status/status.h"
#include "core/base/buffer.h"
#include "core/base/ids.h"
#include "core/services/checkpoint/own_save.h"
#include "gtest/gtest.h"
#include "tests/core/checkpoint/fake_file_system.h"
#include "tests/core/checkpoint/fake_root.h"

namespace psd::services {
namespace {

constexpr GlobalId kSession{5, 1}, kOther{6, 1};
const SaveTable::Key kKey{kSession, {1, 1}};

class SaveTableTest : public ::testing::Test {
 protected:
  SaveTable::SavePtr NewSave() {
    auto save = OwnSave::Start(std::make_unique<checkpoint::FakeFolder>(disk_, "d"), "a", {},
                               NewHeapAllocator());
    EXPECT_TRUE(save.ok()) << save.status();
    return *std::move(save);
  }
  uint64_t Reserve(const SaveTable::Key& key) {
    const auto opening = table_.Reserve(key);
    EXPECT_TRUE(opening.ok()) << opening.status();
    return opening.value_or(0);
  }

  const std::shared_ptr<checkpoint::FakeFileSystem> disk_ =
      std::make_shared<checkpoint::FakeFileSystem>();
  SaveTable table_;
};

TEST_F(SaveTableTest, ASaveIsFoundFromWhenItsFilesAreThereUntilItIsTaken) {
  const uint64_t opening = Reserve(kKey);
  EXPECT_EQ(table_.Reserve(kKey).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(table_.Find(kKey).status().code(), absl::StatusCode::kNotFound);
  const SaveTable::SavePtr save = NewSave();
  EXPECT_TRUE(table_.Fill(kKey, opening, save));
  EXPECT_EQ(*table_.Find(kKey), save);
  EXPECT_EQ(table_.Take(kKey), save);
  EXPECT_EQ(table_.Find(kKey).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table_.Take(kKey), nullptr);
}

// While the files of the first save were made, the peer has closed it and opened another save of
// the same id.
TEST_F(SaveTableTest, APlaceBelongsToOneOpening) {
  const uint64_t first = Reserve(kKey);
  table_.Take(kKey);
  const uint64_t second = Reserve(kKey);
  const SaveTable::SavePtr theirs = NewSave();
  ASSERT_TRUE(table_.Fill(kKey, second, theirs));
  EXPECT_FALSE(table_.Fill(kKey, first, NewSave()));
  EXPECT_EQ(table_.Take(kKey, first), nullptr);
  EXPECT_EQ(*table_.Find(kKey), theirs);
  EXPECT_EQ(table_.Take(kKey, second), theirs);
  EXPECT_EQ(table_.Find(kKey).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SaveTableTest, PlacesAreBoundedAndGoWithTheirSession) {
  for (uint64_t i = 1; i < SaveTable::kMaxSaves; ++i) Reserve({kSession, {1, i}});
  const uint64_t last = Reserve({kOther, {1, 1}});
  EXPECT_EQ(table_.Reserve({kOther, {1, 2}}).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(table_.TakeAllOf(kSession).empty()) << "no files were made yet";
  Reserve({kSession, {1, 1}});
  EXPECT_TRUE(table_.Fill({kOther, {1, 1}}, last, NewSave()));
  EXPECT_EQ(table_.TakeAllOf(kOther).size(), 1u);
}

}  // namespace
}  // namespace psd::services
