// Steps for several seats of a synchronous round, and trainers that come, die and take over.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/steps/step_request.h"
#include "gtest/gtest.h"
#include "tests/core/optim/owner/round_fixture.h"

namespace psd::optim {
namespace {

TEST_F(RoundTest, DDP_32_ARoundCountsSeatsAndItsMeanIsOverThem) {
  Make(UpdateMode::Synchronous(5));
  seats_ = {{1, 2}, {2, 3}};
  Offer(1);
  EXPECT_TRUE(answers_.empty());
  Offer(2);
  EXPECT_FLOAT_EQ(First(a_), 0.6f);  // (1 + 2) / 5
  for (uint64_t n : {1, 2}) {
    ASSERT_TRUE(answers_[n][0].ok()) << answers_[n][0].status();
    EXPECT_EQ(answers_[n][0]->trainers, 5);
    EXPECT_EQ(answers_[n][0]->steps_accepted, 1u);
  }
  Offer(3);
  EXPECT_EQ(LastCode(3), absl::StatusCode::kResourceExhausted) << "no seat is left";
}

TEST_F(RoundTest, DDP_32_StepsForSeveralSeatsHaveTheBitsOfSumsInGroups) {
  const std::vector<float> each{0x1p24f, 1, 1, 1};
  const float in_groups = (each[0] + each[1]) + (each[2] + each[3]);
  ASSERT_NE(in_groups, ((each[0] + each[1]) + each[2]) + each[3]);
  Make(UpdateMode::Synchronous(4, UpdateMode::Reduction::kSum));
  for (const uint64_t n : {uint64_t{2}, uint64_t{1}}) {  // whatever the order of arrival
    StepRequest request;
    request.step_id = ids_.Next();
    request.member = {Session(n), std::string(1, static_cast<char>('a' + n))};
    request.seats = 2;
    request.plan = *optimizer_->table().Plan(
        {{a_->id, Full(-static_cast<double>(each[2 * n - 2] + each[2 * n - 1]))}});
    request.done = [this, n](absl::StatusOr<StepResult> result) {
      answers_[n].push_back(std::move(result));
    };
    optimizer_->Step(std::move(request));
  }
  EXPECT_EQ(answers_[1][0]->trainers, 4);
  EXPECT_EQ(First(a_), in_groups);
}

TEST_F(RoundTest, DDP_32_APusherThatDiesLeavesItsSeatsEmptyAndAnotherTakesOver) {
  Make(UpdateMode::Synchronous(4));
  seats_ = {{1, 2}, {2, 2}};
  Offer(1);
  Offer(2);
  EXPECT_EQ(First(a_), 0.75f);
  Offer(1);
  Offer(3);
  EXPECT_EQ(LastCode(3), absl::StatusCode::kResourceExhausted) << "trainer 2 may still come";
  optimizer_->EndSession({2, 1});
  EXPECT_EQ(First(a_), 1.25f) << "the round goes on without the two seats";
  EXPECT_EQ(answers_[1].back()->trainers, 2);
  Offer(3);
  Offer(1);
  EXPECT_EQ(answers_[3].back()->trainers, 3);
  EXPECT_FLOAT_EQ(First(a_), 1.25f + 4.0f / 3);
}

TEST_F(RoundTest, DDP_32_TheTrainersOfAPusherThatWasTheOnlyMemberGoOnWithoutIt) {
  Make(UpdateMode::Synchronous(3));
  for (uint64_t n : {1, 2, 3}) optimizer_->Join(Session(n), 1);
  seats_ = {{1, 3}, {2, 2}};
  Offer(1);
  EXPECT_TRUE(answers_[1].back().ok());
  optimizer_->EndSession({1, 1});
  Offer(2);
  ASSERT_EQ(answers_[2].size(), 1u) << "nobody else is waited for";
  EXPECT_EQ(answers_[2][0]->trainers, 2);
}

TEST_F(RoundTest, DDP_32_AStepForSeveralSeatsThatIsAskedForAgainCountsOnce) {
  Make(UpdateMode::Synchronous(4, UpdateMode::Reduction::kSum));
  seats_ = {{1, 2}, {2, 2}};
  const GlobalId step = Offer(1);
  Offer(1, step);  // a retry, which takes the place of the first request
  seats_[1] = 1;
  Offer(1, step);  // a retry for another number of seats
  seats_[1] = 2;
  Offer(1, step);
  ASSERT_EQ(answers_[1].size(), 3u);
  for (const auto& answer : answers_[1])
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kAborted);
  Offer(2);
  EXPECT_EQ(answers_[1].back()->trainers, 4);
  EXPECT_EQ(First(a_), 3);
  Offer(1, step);
  EXPECT_TRUE(answers_[1].back()->repeated);
  EXPECT_EQ(First(a_), 3);
}

TEST_F(RoundTest, DDP_32_MeasuredRoundsAreScaledBySeats) {
  Make(UpdateMode::Synchronous(3));
  seats_ = {{2, 2}};
  NameRound(5, /*measures=*/true);
  ASSERT_TRUE(turns_[2][0].ok()) << turns_[2][0];
  Measure(1, {1, 4});
  Measure(2, {2, 4});
  ASSERT_TRUE(measured_[1].back().ok()) << measured_[1].back().status();
  EXPECT_DOUBLE_EQ(*measured_[1].back(), 1 * kElements);  // ((1 + 2) / 3)²
  Offer(1, {1, 4});
  Offer(2, {2, 4});
  EXPECT_FLOAT_EQ(First(a_), 1);
  EXPECT_EQ(answers_[1][0]->trainers, 3);
}

TEST_F(RoundTest, DDP_32_StepsOfANamedRoundAreForNoMoreSeatsThanThereAre) {
  Make(UpdateMode::Synchronous(3));
  seats_ = {{2, 2}};
  NameRound(5);
  Offer(2, {2, 4});
  seats_[1] = 2;  // another number than it took its turn for
  Offer(1, {1, 4});
  EXPECT_EQ(LastCode(1), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(answers_[2].size(), 1u) << "nobody waits for a step that was refused";
  EXPECT_EQ(answers_[2][0]->trainers, 2);
  EXPECT_EQ(First(a_), 1);
}

TEST_F(RoundTest, DDP_32_SeveralSeatsNeedRounds) {
  for (const UpdateMode& mode : {UpdateMode::Asynchronous(), UpdateMode::BoundedStaleness(1)}) {
    Make(mode);
    seats_ = {{1, 2}};
    Offer(1);
    EXPECT_EQ(LastCode(1), absl::StatusCode::kInvalidArgument) << answers_[1].back().status();
    EXPECT_EQ(First(a_), 0);
  }
}

TEST_F(RoundTest, DDP_32_ATrainerThatGivesItsSeatsBackLeavesThemToAnother) {
  Make(UpdateMode::Synchronous(2));
  for (uint64_t n : {1, 2}) optimizer_->Join(Session(n), 1);
  seats_ = {{1, 2}, {2, 2}};
  const GlobalId step = Offer(1);
  Offer(2);
  EXPECT_EQ(LastCode(2), absl::StatusCode::kResourceExhausted);
  optimizer_->GiveSeats(Session(1), step.counter);
  Offer(2);
  EXPECT_EQ(LastCode(2), absl::StatusCode::kResourceExhausted) << "a message that comes late";
  optimizer_->GiveSeats(Session(1), step.counter + 1);
  Offer(2);
  ASSERT_TRUE(answers_[2].back().ok()) << answers_[2].back().status();
  EXPECT_EQ(answers_[2].back()->trainers, 2);
  optimizer_->EndSession(Session(2));
  seats_[1] = 1;
  Offer(1);
  EXPECT_TRUE(answers_[1].back().ok()) << "the seat of trainer 2 is empty";
  EXPECT_EQ(answers_[1].size(), 2u);
}

// The notice of the end overtakes the creation, which another thread serves.
TEST_F(RoundTest, DDP_32_ASessionThatHasEndedKeepsNoSeatsTaken) {
  Make(UpdateMode::Synchronous(2));
  optimizer_->EndSession({3, 1});
  optimizer_->Join({3, 1}, 1);
  for (uint64_t n : {1, 2}) Offer(n);
  ASSERT_TRUE(answers_[2].back().ok());
  for (uint64_t n : {1, 2}) optimizer_->EndSession(Session(n));
  Offer(4);
  EXPECT_TRUE(answers_[4].empty()) << "a new run waits for all";
}

}  // namespace
}  // namespace psd::optim
