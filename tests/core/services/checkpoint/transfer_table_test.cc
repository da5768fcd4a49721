#include "core/services/checkpoint/transfer_table.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/ids.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"

namespace psd::services {
namespace {

constexpr GlobalId kSession{1, 1}, kOther{1, 2}, kId{7, 1}, kNext{7, 2};

std::shared_ptr<Transfer> With(Transfer::Direction direction) {
  return std::make_shared<Transfer>(direction,
                                    std::vector<Tensor>{Tensor::Of<int32_t>(Shape{2}, {1, 2}),
                                                        Tensor::Of<int32_t>(Shape{0}, {})});
}
std::shared_ptr<Transfer> Room() {
  return With(Transfer::Direction::kIn);
}

TEST(Transfer, AnExportIsReadAndNeverWritten) {
  const std::shared_ptr<Transfer> exported = With(Transfer::Direction::kOut);
  EXPECT_EQ(exported->Fill(0, 0, Buffer::FromString("none")).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(exported->arrays()[0].data<int32_t>()[0], 1);
  EXPECT_TRUE(exported->Piece(0, 0, 8).ok());
  TransferTable table;
  ASSERT_TRUE(table.Put(kSession, kId, exported).ok());
  EXPECT_EQ(table.Take(kSession, kId).status().code(), absl::StatusCode::kFailedPrecondition)
      << "its arrays may be those of a value";
  EXPECT_TRUE(table.Find(kSession, kId).ok());
}

TEST(Transfer, PiecesStayWithinTheArrays) {
  const std::shared_ptr<Transfer> room = Room();
  const std::string five("\x05\0\0\0", 4);
  ASSERT_TRUE(room->Fill(0, 4, Buffer::FromString(five)).ok());
  EXPECT_EQ(room->arrays()[0].data<int32_t>()[0], 1);
  EXPECT_EQ(room->arrays()[0].data<int32_t>()[1], 5);
  auto piece = room->Piece(0, 4, 4);
  ASSERT_TRUE(piece.ok()) << piece.status();
  EXPECT_EQ(piece->view(), five);
  EXPECT_TRUE(room->Piece(0, 8, 0).ok());
  EXPECT_TRUE(room->Piece(1, 0, 0).ok());
  struct Range {
    uint64_t array, first, bytes;
  };
  for (const Range& bad :
       {Range{2, 0, 0}, Range{0, 9, 0}, Range{0, 8, 1}, Range{1, 0, 1}, Range{0, 1, UINT64_MAX},
        Range{0, UINT64_MAX, 2}, Range{UINT64_MAX, 0, 0}})
    EXPECT_EQ(room->Piece(bad.array, bad.first, bad.bytes).status().code(),
              absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(room->Fill(0, 5, Buffer::FromString(five)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(room->Fill(3, 0, Buffer::FromString(five)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(TransferTable, ASessionHasAFewAtTheSameTime) {
  TransferTable table;
  const auto id = [](size_t i) { return GlobalId{7, i + 1}; };
  for (size_t i = 0; i < TransferTable::kPerSession; ++i)
    ASSERT_TRUE(table.Put(kSession, id(i), Room()).ok());
  for (size_t i = 0; i < TransferTable::kPerSession; ++i)
    EXPECT_TRUE(table.Find(kSession, id(i)).ok()) << i;
  EXPECT_EQ(table.Find(kOther, kId).status().code(), absl::StatusCode::kNotFound);
  const GlobalId more = id(TransferTable::kPerSession);
  EXPECT_EQ(table.Put(kSession, more, Room()).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(table.Put(kSession, kId, Room()).ok()) << "in place of the one of that id";
  EXPECT_TRUE(table.Put(kOther, more, Room()).ok()) << "another session has its own";
  table.Release(kSession, kId);
  EXPECT_FALSE(table.Find(kSession, kId).ok());
  EXPECT_TRUE(table.Put(kSession, more, Room()).ok());
}

TEST(TransferTable, EndsWithItsSession) {
  TransferTable table;
  ASSERT_TRUE(table.Put(kSession, kId, Room()).ok());
  ASSERT_TRUE(table.Put(kOther, kId, Room()).ok());
  table.OnSessionEnded(kSession);
  EXPECT_FALSE(table.Find(kSession, kId).ok());
  EXPECT_TRUE(table.Find(kOther, kId).ok());
}

TEST(TransferTable, IsTakenOnlyWhenNobodyFillsIt) {
  TransferTable table;
  ASSERT_TRUE(table.Put(kSession, kId, Room()).ok());
  {
    auto filling = table.Find(kSession, kId);
    ASSERT_TRUE(filling.ok());
    EXPECT_EQ(table.Take(kSession, kId).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_TRUE(table.Take(kSession, kId).ok());
  EXPECT_EQ(table.Take(kSession, kId).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace psd::services
