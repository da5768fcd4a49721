#include "core/optim/steps/round_board.h"

#include <set>
#include <vector>

#include "absl/status/status.h"
#include "core/base/ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::optim {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

GlobalId Turn(uint64_t trainer) {
  return {trainer, 10};
}
GlobalId Step(uint64_t trainer) {
  return {trainer, 7};
}

class RoundBoardTest : public ::testing::Test {
 protected:
  absl::Status Offer(uint64_t trainer, bool measures = false) {
    return board_.Offer(Step(trainer), {Turn(trainer), 0, word_}, measures);
  }
  std::optional<RoundBoard::Complete> Take() {
    return board_.Take([this](GlobalId turn) { return gone_.count(turn) == 0; });
  }

  RoundWord word_{1, {Turn(1), Turn(2), Turn(3)}};
  std::set<GlobalId> gone_;
  RoundBoard board_{3};
};

TEST_F(RoundBoardTest, ARoundWaitsForTheMembersThatTheLeadHasNamed) {
  ASSERT_TRUE(Offer(3).ok());
  ASSERT_TRUE(Offer(1).ok());
  EXPECT_FALSE(Take().has_value());
  EXPECT_EQ(board_.waiting(), 2u);
  ASSERT_TRUE(Offer(2).ok());
  const auto complete = Take();
  ASSERT_TRUE(complete.has_value());
  EXPECT_THAT(complete->steps, ElementsAre(Step(1), Step(2), Step(3)));
  EXPECT_THAT(complete->missing, IsEmpty());
  EXPECT_FALSE(Take().has_value());
  EXPECT_EQ(board_.waiting(), 0u);
}

TEST_F(RoundBoardTest, DDP_32_StepsAreForNoMoreSeatsThanThereAre) {
  const auto offer = [this](uint64_t trainer, uint32_t seats) {
    return board_.Offer(Step(trainer), {Turn(trainer), 0, word_}, /*measures=*/false, seats);
  };
  EXPECT_EQ(offer(1, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(offer(1, 4).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(board_.waiting(), 0u);
  ASSERT_TRUE(offer(1, 2).ok());
  EXPECT_EQ(offer(2, 0xffffffff).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(offer(2, 2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(offer(2, 1).ok());
}

TEST_F(RoundBoardTest, MembersThatAreNotExpectedAreNotWaitedFor) {
  ASSERT_TRUE(Offer(1).ok());
  gone_ = {Turn(2), Turn(3)};
  const auto complete = Take();
  ASSERT_TRUE(complete.has_value());
  EXPECT_THAT(complete->steps, ElementsAre(Step(1)));
  EXPECT_THAT(complete->missing, ElementsAre(Turn(2), Turn(3)));
}

TEST_F(RoundBoardTest, ARoundIsGoneThroughTwice) {
  for (const bool measures : {true, false}) {
    for (const uint64_t trainer : {1, 2, 3}) ASSERT_TRUE(Offer(trainer, measures).ok());
    EXPECT_TRUE(Take().has_value());
  }
}

TEST_F(RoundBoardTest, TwoRoundsWaitBesideEachOther) {
  ASSERT_TRUE(Offer(1).ok());
  word_ = {2, {{4, 1}, {5, 1}}};
  ASSERT_TRUE(board_.Offer(Step(4), {{4, 1}, 0, word_}, false).ok());
  EXPECT_FALSE(Take().has_value());
  gone_ = {{5, 1}};
  ASSERT_TRUE(Take().has_value());
  EXPECT_TRUE(board_.Withdraw(Step(1)));
  EXPECT_FALSE(board_.Withdraw(Step(1)));
  EXPECT_EQ(board_.waiting(), 0u);
}

TEST_F(RoundBoardTest, WordsThatCannotBeTheLeadsAreRefused) {
  const auto code = [&] { return Offer(1).code(); };
  word_.members = {Turn(2), Turn(3)};
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument) << "not a member";
  word_.members = {Turn(2), Turn(1)};
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument) << "not in order";
  word_.members = {Turn(1), Turn(2), Turn(3), Turn(4)};
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument) << "more members than trainers";
  word_.members = {Turn(1), Turn(2)};
  ASSERT_TRUE(Offer(2).ok());
  word_.members = {Turn(1), Turn(3)};
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument) << "not what the other member says";
  word_.members = {Turn(1), Turn(2)};
  EXPECT_EQ(Offer(1, /*measures=*/true).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Offer(1).ok());
  EXPECT_EQ(code(), absl::StatusCode::kFailedPrecondition) << "twice";
}

}  // namespace
}  // namespace psd::optim
