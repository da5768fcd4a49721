#include "core/services/collectives/call_plan.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "core/services/collectives/collective_call.h"
#include "gtest/gtest.h"

namespace psd::services {
namespace {

constexpr PlanLimits kLimits{/*small_bytes=*/256, /*piece_bytes=*/128,
                             /*most_direct_bytes=*/1200, /*most_extra_bytes=*/1800,
                             /*notice_bytes=*/0};

CollectiveCall Call(Operation operation, int64_t rows, int root = 0) {
  CollectiveCall call;
  call.operation = operation;
  call.form = TensorForm{DType::kF32, {rows}};
  call.root = root;
  if (Reduces(operation)) call.reduction = Reduction::kSum;
  return call;
}

// Whether the pieces of a block cover it without a gap, in order.
void ExpectPiecesCover(const CallPlan& plan, int phase, int from, int to) {
  const Range block = plan.Block(phase, from, to);
  size_t at = block.offset;
  for (size_t index = 0; index < plan.Pieces(phase, from, to); ++index) {
    const Range piece = plan.Piece(phase, from, to, index);
    EXPECT_EQ(piece.offset, at);
    EXPECT_GT(piece.size, 0u);
    at += piece.size;
  }
  EXPECT_EQ(at, block.offset + block.size) << from << " to " << to;
}

TEST(CallPlanTest, ASmallAllReduceBringsAllInputsToAllRanks) {
  const CallPlan plan(Call(Operation::kAllReduce, 64), 4, kLimits);
  EXPECT_TRUE(plan.tells_bytes());
  EXPECT_FALSE(plan.sends_pieces());
  EXPECT_FALSE(plan.reduces_pieces());
  EXPECT_EQ(plan.Block(0, 1, 2).size, 256u);
  EXPECT_EQ(plan.Block(1, 1, 2).size, 0u);
}

TEST(CallPlanTest, SmallBlocksTravelWithTheNotice) {
  for (const int ranks : {4, 100}) {
    const auto tells = [&](Operation operation, int64_t elements) {
      return CallPlan(Call(operation, elements), ranks, kLimits).tells_bytes();
    };
    EXPECT_TRUE(tells(Operation::kAllGather, 64));
    EXPECT_FALSE(tells(Operation::kAllGather, 65));
    EXPECT_TRUE(tells(Operation::kReduceScatter, ranks * 64));
    EXPECT_FALSE(tells(Operation::kReduceScatter, ranks * 65));
  }
}

TEST(CallPlanTest, ThePartsOfALargeAllReduceCoverTheTensorOnce) {
  for (const int ranks : {2, 3, 4, 7, 64}) {
    for (const int64_t elements : {301, 333, 1024, 5000}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", elements));
      const CallPlan plan(Call(Operation::kAllReduce, elements), ranks, kLimits);
      ASSERT_TRUE(plan.has_second_phase());
      size_t at = 0;
      for (int owner = 0; owner < ranks; ++owner) {
        const Range part = plan.Block(0, 0, owner);
        EXPECT_EQ(part.offset, at);
        EXPECT_TRUE(part.size == 0 || part.offset % 64 == 0);
        at += part.size;
        for (int other = 0; other < ranks; ++other) {
          EXPECT_EQ(plan.Block(0, other, owner).offset, part.offset);
          EXPECT_EQ(plan.Block(1, owner, other).offset, part.offset);
          EXPECT_EQ(plan.Block(1, owner, other).size, part.size);
          ExpectPiecesCover(plan, 0, other, owner);
        }
        ExpectPiecesCover(plan, 1, owner, 0);
      }
      EXPECT_EQ(at, static_cast<size_t>(elements) * 4);
    }
  }
}

TEST(CallPlanTest, ADirectAllReduceBringsAllPiecesOfAllInputsToAllRanks) {
  for (const int ranks : {2, 4}) {
    const CallPlan plan(Call(Operation::kAllReduce, 300), ranks, kLimits);
    EXPECT_FALSE(plan.tells_bytes());
    EXPECT_TRUE(plan.sends_pieces());
    EXPECT_TRUE(plan.reduces_pieces());
    EXPECT_FALSE(plan.has_second_phase());
    EXPECT_EQ(plan.Block(0, 1, 0).size, 1200u);
    EXPECT_EQ(plan.Pieces(0, 1, 0), 10u);
    ExpectPiecesCover(plan, 0, 1, 0);
    EXPECT_EQ(plan.Pieces(1, 1, 0), 0u);
  }
}

// On the direct way 4 ranks send 3 times 1,200 bytes, otherwise 6 times 300.
TEST(CallPlanTest, AnAllReduceIsDirectIfThatSendsFewMoreBytes) {
  const auto direct = [](int64_t elements, int ranks, const PlanLimits& limits) {
    return !CallPlan(Call(Operation::kAllReduce, elements), ranks, limits).has_second_phase();
  };
  EXPECT_TRUE(direct(300, 4, kLimits));
  EXPECT_FALSE(direct(300, 5, kLimits)) << "they send 2,880 bytes more";
  EXPECT_FALSE(direct(301, 2, kLimits)) << "two ranks send no more, but the tensor is too large";
  PlanLimits limits = kLimits;
  limits.most_extra_bytes = 1799;
  EXPECT_FALSE(direct(300, 4, limits));
  limits.most_extra_bytes = 0;
  EXPECT_TRUE(direct(300, 2, limits));
  EXPECT_FALSE(direct(300, 3, limits));
  EXPECT_TRUE(direct(64, 3, limits)) << "small calls are direct in any case";
}

TEST(CallPlanTest, BlocksThatAreNotSmallTravelWithTheNoticeIfFewComeToARank) {
  PlanLimits limits = kLimits;
  limits.notice_bytes = 400;
  limits.most_notice_bytes = 1000;
  const auto tells = [&](Operation operation, int64_t elements, int ranks) {
    const CallPlan plan(Call(operation, elements), ranks, limits);
    if (plan.tells_bytes()) {
      EXPECT_EQ(plan.Pieces(0, 0, 1), 1u);
      ExpectPiecesCover(plan, 0, 0, 1);
      EXPECT_FALSE(plan.sends_pieces());
    }
    return plan.tells_bytes();
  };
  EXPECT_TRUE(tells(Operation::kAllGather, 100, 3));
  EXPECT_FALSE(tells(Operation::kAllGather, 101, 3));
  EXPECT_FALSE(tells(Operation::kAllGather, 100, 4)) << "1,200 bytes from 3 ranks";
  EXPECT_TRUE(tells(Operation::kReduceScatter, 3 * 100, 3));
  EXPECT_FALSE(tells(Operation::kReduceScatter, 4 * 100, 4));
  EXPECT_TRUE(tells(Operation::kBroadcast, 100, 4)) << "only the root sends";
  EXPECT_FALSE(tells(Operation::kBroadcast, 101, 4));
  EXPECT_TRUE(CallPlan(Call(Operation::kAllReduce, 100), 1, limits).tells_bytes());
  limits.most_shared_bytes = 1200;
  CollectiveCall sharing = Call(Operation::kAllGather, 100);
  sharing.shares_memory = true;
  EXPECT_TRUE(CallPlan(sharing, 4, limits).tells_bytes());
  EXPECT_FALSE(CallPlan(sharing, 5, limits).tells_bytes());
}

// A tensor of 1,000 bytes. The notices carry part j of it to rank j. Rank j then sends the sums of
// that part in one piece.
TEST(CallPlanTest, ThePartsOfAnAllReduceMayTravelWithTheNoticeToo) {
  PlanLimits limits = kLimits;
  limits.most_direct_bytes = 0;
  limits.notice_bytes = 384;
  limits.most_notice_bytes = 768;
  const CallPlan plan(Call(Operation::kAllReduce, 250), 3, limits);
  EXPECT_TRUE(plan.tells_bytes());
  EXPECT_TRUE(plan.has_second_phase());
  EXPECT_TRUE(plan.sends_pieces());
  EXPECT_TRUE(plan.reduces_pieces());
  for (int rank = 0; rank < 3; ++rank) {
    for (int phase : {0, 1}) {
      const int other = (rank + 1) % 3;
      EXPECT_EQ(plan.Pieces(phase, rank, other), 1u);
      ExpectPiecesCover(plan, phase, rank, other);
    }
  }
  EXPECT_FALSE(CallPlan(Call(Operation::kAllReduce, 289), 3, limits).tells_bytes())
      << "a part has 448 bytes";
  limits.most_notice_bytes = 767;
  EXPECT_FALSE(CallPlan(Call(Operation::kAllReduce, 250), 3, limits).tells_bytes())
      << "a rank gets two parts of up to 384 bytes";
}

TEST(CallPlanTest, AnAllReduceOfRanksThatShareMemoryIsDirectIfItTravelsWithTheNotice) {
  PlanLimits limits = kLimits;
  limits.most_direct_bytes = 0;
  limits.notice_bytes = 400;
  limits.most_notice_bytes = 0;
  limits.most_shared_bytes = 1000;
  const auto direct = [&](int64_t elements, int ranks, bool shares_memory) {
    CollectiveCall call = Call(Operation::kAllReduce, elements);
    call.shares_memory = shares_memory;
    const CallPlan plan(call, ranks, limits);
    EXPECT_EQ(plan.reduces_pieces(), elements > 64);
    if (!plan.has_second_phase()) {
      EXPECT_TRUE(plan.tells_bytes());
      EXPECT_EQ(plan.Pieces(0, 0, 0), 1u);
      ExpectPiecesCover(plan, 0, 0, 0);
    }
    return !plan.has_second_phase();
  };
  EXPECT_TRUE(direct(100, 3, true));
  EXPECT_FALSE(direct(101, 3, true));
  EXPECT_FALSE(direct(100, 3, false));
  EXPECT_FALSE(direct(100, 4, true)) << "1,200 bytes from 3 ranks";
  EXPECT_TRUE(direct(64, 100, true)) << "small calls are direct in any case";
  EXPECT_TRUE(direct(100, 1, true));
}

TEST(CallPlanTest, AReduceScatterBringsEqualBlocksToTheRanks) {
  const CallPlan plan(Call(Operation::kReduceScatter, 3 * 100), 3, kLimits);
  EXPECT_TRUE(plan.reduces_pieces());
  EXPECT_FALSE(plan.has_second_phase());
  EXPECT_EQ(plan.Block(0, 0, 2).offset, 800u);
  EXPECT_EQ(plan.Block(0, 0, 2).size, 400u);
  EXPECT_EQ(plan.Pieces(0, 0, 2), 4u);
  ExpectPiecesCover(plan, 0, 0, 2);
  EXPECT_EQ(plan.Pieces(1, 0, 2), 0u);
}

TEST(CallPlanTest, BytesThatAreNotReducedTravelInOnePiece) {
  for (const Operation operation : {Operation::kAllGather, Operation::kBroadcast}) {
    const CallPlan plan(Call(operation, 1000), 3, kLimits);
    EXPECT_EQ(plan.Pieces(0, 0, 1), 1u);
    EXPECT_EQ(plan.Piece(0, 0, 1, 0).size, 4000u);
  }
}

TEST(CallPlanTest, OnlyTheRootGivesOrGets) {
  const CallPlan broadcast(Call(Operation::kBroadcast, 10, 2), 3, kLimits);
  EXPECT_EQ(broadcast.Pieces(0, 2, 0), 1u);
  EXPECT_EQ(broadcast.Pieces(0, 1, 0), 0u);
  const CallPlan scatter(Call(Operation::kScatter, 10, 2), 3, kLimits);
  EXPECT_EQ(scatter.Pieces(0, 2, 0), 1u);
  EXPECT_EQ(scatter.Pieces(0, 0, 2), 0u);
  const CallPlan gather(Call(Operation::kGather, 10, 2), 3, kLimits);
  EXPECT_EQ(gather.Pieces(0, 0, 2), 1u);
  EXPECT_EQ(gather.Pieces(0, 2, 0), 0u);
}

TEST(CallPlanTest, EmptyTensorsTravelNot) {
  const CallPlan plan(Call(Operation::kAllReduce, 0), 3, kLimits);
  EXPECT_TRUE(plan.tells_bytes());
  EXPECT_FALSE(plan.sends_pieces());
  EXPECT_EQ(plan.Pieces(0, 0, 1), 0u);
}

TEST(CollectiveCallTest, CheckNamesWhatIsWrong) {
  CollectiveCall call = Call(Operation::kAllReduce, 4);
  EXPECT_TRUE(CheckCall(call, 2).ok());
  call.form->dtype = DType::kU8;
  EXPECT_EQ(CheckCall(call, 2).code(), absl::StatusCode::kInvalidArgument);
  call.form->dtype = DType::kI32;
  EXPECT_TRUE(CheckCall(call, 2).ok());
  call.reduction = Reduction::kMean;
  EXPECT_FALSE(CheckCall(call, 2).ok()) << "integers have no mean";
  EXPECT_FALSE(CheckCall(Call(Operation::kReduceScatter, 5), 2).ok()) << "two blocks of five";
  EXPECT_FALSE(CheckCall(Call(Operation::kBroadcast, 4, 2), 2).ok()) << "no rank 2 of two";
  EXPECT_FALSE(CheckCall(Call(Operation::kAllGather, 4, 1), 2).ok()) << "it has no root";
  CollectiveCall labelled = Call(Operation::kAllGather, 4);
  labelled.label = std::string(kMaxLabelBytes + 1, 'x');
  EXPECT_FALSE(CheckCall(labelled, 2).ok());
  CollectiveCall no_form = Call(Operation::kAllGather, 4);
  no_form.form.reset();
  EXPECT_FALSE(CheckCall(no_form, 2).ok());
  no_form.operation = Operation::kBroadcast;
  EXPECT_TRUE(CheckCall(no_form, 2).ok()) << "a rank may take whatever the root gives";
  EXPECT_FALSE(CheckCall(Call(static_cast<Operation>(99), 4), 2).ok());
}

TEST(CollectiveCallTest, WhatIsTooLargeForOneMessageIsRefused) {
  CollectiveCall call;
  call.operation = Operation::kBroadcast;
  call.form = TensorForm{DType::kU8, {static_cast<int64_t>(kMostWholeBytes)}};
  EXPECT_TRUE(CheckCall(call, 2).ok());
  call.form = TensorForm{DType::kU8, {static_cast<int64_t>(kMostWholeBytes) + 1}};
  const absl::Status refused = CheckCall(call, 2);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_NE(refused.message().find("cut it into several tensors"), std::string::npos);
  call.operation = Operation::kAllReduce;
  call.reduction = Reduction::kSum;
  call.form->dtype = DType::kF32;
  EXPECT_TRUE(CheckCall(call, 2).ok()) << "what is reduced travels in pieces";
}

TEST(CollectiveCallTest, CallsAgreeIfAllOfTheirPartsDo) {
  const CollectiveCall call = Call(Operation::kAllReduce, 4);
  EXPECT_TRUE(Agree(call, call));
  CollectiveCall other = call;
  other.reduction = Reduction::kMax;
  EXPECT_FALSE(Agree(call, other));
  other = call;
  other.form->dtype = DType::kF64;
  EXPECT_FALSE(Agree(call, other));
  other = call;
  other.form->shape = Shape({2, 2});
  EXPECT_FALSE(Agree(call, other)) << "another shape of equally many elements";
  other = call;
  other.label = "bucket 1";
  EXPECT_FALSE(Agree(call, other));
  other = call;
  other.form.reset();
  EXPECT_TRUE(Agree(call, other));
}

TEST(CollectiveCallTest, TheTextNamesAll) {
  CollectiveCall call = Call(Operation::kAllReduce, 4);
  call.label = "bucket 1";
  EXPECT_EQ(call.ToString(), "all-reduce (sum) of f32[4] labelled 'bucket 1'");
  EXPECT_EQ(Call(Operation::kGather, 4, 1).ToString(), "gather of f32[4] to rank 1");
  EXPECT_EQ(Call(Operation::kBroadcast, 4, 1).ToString(), "broadcast of f32[4] from rank 1");
}

}  // namespace
}  // namespace psd::services
