// Steps that wait for steps of other trainers: synchronous rounds and pacing.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/steps/step_request.h"
#include "core/store/store.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/core/optim/owner/round_fixture.h"
#include "tests/core/store/changing_for_tests.h"

namespace psd::optim {
namespace {

using store::EntryPtr;

TEST_F(RoundTest, AppliesTheSumAsOneStep) {
  Make(UpdateMode::Synchronous(3, UpdateMode::Reduction::kSum));
  Offer(1);
  Offer(2);
  EXPECT_TRUE(answers_.empty());
  EXPECT_EQ(optimizer_->stats().waiting, 2u);
  Offer(3);
  EXPECT_EQ(First(a_), 6);
  EXPECT_EQ(a_->parameter->version(), 2u);
  for (uint64_t n : {1, 2, 3}) {
    ASSERT_TRUE(answers_[n][0].ok());
    EXPECT_EQ(answers_[n][0]->trainers, 3);
    EXPECT_EQ(answers_[n][0]->steps_accepted, 1u);
  }
}

TEST_F(RoundTest, MeanIsOverThoseInTheRound) {
  Make(UpdateMode::Synchronous(2));
  Offer(1);
  Offer(3);
  EXPECT_EQ(First(a_), 2);
  Offer(1);
  optimizer_->EndSession({3, 1});  // the member died, and the round goes on without it
  EXPECT_EQ(First(a_), 3);
  Offer(3);
  EXPECT_EQ(answers_[3][1].status().code(), absl::StatusCode::kAborted);
}

// 2^24 + 1 is 2^24 in f32, so the order of a sum shows in its bits.
// In bf16, 256 + 1 is 256. The sum is made in f32 and rounded once.
TEST_F(RoundTest, ManySmallHalvesAreNotLost) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const EntryPtr half = NewParameter(std::string(DTypeName(dtype)), *ops::Cast(Full(0), dtype));
    OptimizerSettings settings;
    const uint32_t trainers = dtype == DType::kF16 ? 2304 : 512;
    settings.mode = UpdateMode::Synchronous(trainers, UpdateMode::Reduction::kSum);
    const auto optimizer = *NewOptimizer(kSgd1, {half}, settings);
    uint32_t applied = 0;
    for (uint64_t n = 1; n <= trainers; ++n) {
      StepRequest request;
      request.step_id = {n, 1};
      request.member = {{n, 1}, "trainer"};
      request.plan = *optimizer->table().Plan({{half->id, *ops::Cast(Full(-1), dtype)}});
      request.done = [&](const absl::StatusOr<StepResult>& result) { applied += result.ok(); };
      optimizer->Step(std::move(request));
    }
    EXPECT_EQ(applied, trainers);
    const Tensor now = *ops::Cast(half->parameter->Pin()->tensor, DType::kF32);
    EXPECT_EQ(now.data<float>()[0], static_cast<float>(trainers));
  }
}

TEST_F(RoundTest, ADeadMembersStepIsOutOfTheRound) {
  Make(UpdateMode::Synchronous(3, UpdateMode::Reduction::kSum));
  for (uint64_t n : {1, 2, 3}) Offer(n);
  Offer(1);
  Offer(2);
  optimizer_->EndSession({2, 1});
  EXPECT_EQ(answers_[2][1].status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(First(a_), 6);
  Offer(3);
  EXPECT_EQ(First(a_), 10);
}

TEST_F(RoundTest, RetriesAndWithdrawals) {
  Make(UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum));
  const GlobalId step = Offer(1);
  optimizer_->Withdraw(last_ticket_);
  EXPECT_EQ(answers_[1][0].status().code(), absl::StatusCode::kCancelled);
  Offer(1, step);
  Offer(1, step);  // a retry, which aborts the call before
  EXPECT_EQ(answers_[1][1].status().code(), absl::StatusCode::kAborted);
  Offer(1);
  EXPECT_EQ(answers_[1][2].status().code(), absl::StatusCode::kFailedPrecondition);
  Offer(2);
  EXPECT_EQ(First(a_), 3);
  ASSERT_TRUE(answers_[1][3].ok());
  Offer(1, step);
  EXPECT_TRUE(answers_[1][4]->repeated);
  EXPECT_EQ(optimizer_->stats().waiting, 0u);
  EXPECT_EQ(First(a_), 3);
}

TEST_F(RoundTest, ACancelledCallTakesBackNoRetryOfItsStep) {
  Make(UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum));
  const GlobalId step = Offer(1);
  const uint64_t first = last_ticket_;
  Offer(1, step);
  optimizer_->Withdraw(first);
  EXPECT_EQ(answers_[1].size(), 1u);  // the answer to the first call; the retry still waits
  Offer(2);
  EXPECT_EQ(First(a_), 3);
}

TEST_F(RoundTest, AStepOfAFailedRoundMayBeAskedForAgain) {
  Make(UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum));
  may_apply_ = false;  // both calls are cancelled just before the first change
  const GlobalId one = Offer(1), two = Offer(2);
  EXPECT_EQ(answers_[1][0].status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(First(a_), 0);
  may_apply_ = true;
  Offer(1, one);
  Offer(2, two);
  ASSERT_EQ(answers_[1].size(), 2u);
  EXPECT_TRUE(answers_[1][1].ok()) << answers_[1][1].status();
  EXPECT_EQ(First(a_), 3);
}

TEST_F(RoundTest, TrainersOfARoundMustAgreeOnItsTerms) {
  Make(UpdateMode::Synchronous(2));
  Offer(1);
  StepTerms clipped;
  clipped.gradient_limit = 0.5;
  Offer(2, {}, clipped);
  EXPECT_EQ(answers_[2][0].status().code(), absl::StatusCode::kFailedPrecondition);
  Offer(2);
  EXPECT_EQ(First(a_), 1.5f);
}

TEST_F(RoundTest, ARoundThatOverflowsIsOneSkippedStep) {
  Make(UpdateMode::Synchronous(2));
  StepTerms overflow;
  overflow.loss_scale = 8;
  overflow.overflow = true;
  Offer(1, {}, overflow);
  Offer(2, {}, overflow);
  ASSERT_TRUE(answers_[2][0].ok()) << answers_[2][0].status();
  EXPECT_TRUE(answers_[1][0]->skipped);
  EXPECT_EQ(optimizer_->stats().skipped, 1u);
}

TEST_F(RoundTest, TheLeadNamesARoundWhoseMembersMeasureAndThenStep) {
  Make(UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum));
  Measure(1, {1, 4});
  EXPECT_EQ(measured_[1].back().status().code(), absl::StatusCode::kFailedPrecondition)
      << "the lead has named no round";
  NameRound(5, /*measures=*/true);
  ASSERT_TRUE(turns_[2][0].ok()) << turns_[2][0];
  EXPECT_EQ(Place(1).word, Place(2).word);
  EXPECT_EQ(Place(1).word.number, 1u);
  EXPECT_EQ(Place(1).word.members, (std::vector<GlobalId>{{1, 5}, {2, 6}}));
  TakeTurn(1, 5, 5, true);  // its answer was lost
  EXPECT_EQ(Place(1).word, Place(2).word);
  Measure(1, {1, 4});
  EXPECT_EQ(measured_[1].size(), 1u);
  Measure(2, {2, 4});
  ASSERT_TRUE(measured_[1].back().ok()) << measured_[1].back().status();
  EXPECT_EQ(*measured_[1].back(), 9 * kElements);  // each is 1 + 2
  EXPECT_EQ(*measured_[2].back(), 9 * kElements);
  Measure(1, {1, 4});  // its answer was lost
  EXPECT_EQ(*measured_[1].back(), 9 * kElements);
  Offer(1, {1, 4});
  EXPECT_TRUE(answers_.empty());
  Offer(2, {2, 4});
  EXPECT_EQ(First(a_), 3);
  NameRound(7);
  EXPECT_EQ(Place(1).word.number, 2u);
}

// Trainer 2's request was cut off here, and was answered on another owner.
TEST_F(RoundTest, AMemberThatGivesItsTurnBackIsWaitedForInNeitherPhase) {
  for (const bool overtakes : {true, false}) {
    Make(UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum));
    answers_.clear();
    measured_.clear();
    const float before = First(a_);
    NameRound(5, /*measures=*/true);
    if (overtakes) optimizer_->EndTurn({2, 1}, {2, 6}, false);
    Measure(1, {1, 4});
    if (!overtakes) {
      EXPECT_TRUE(measured_.empty());
      optimizer_->EndTurn({2, 1}, {2, 6}, false);
    }
    ASSERT_EQ(measured_[1].size(), 1u);
    EXPECT_EQ(*measured_[1][0], kElements);
    Offer(1, {1, 4});
    EXPECT_TRUE(answers_[1][0].ok()) << answers_[1][0].status();
    Offer(2, {2, 4});
    EXPECT_EQ(LastCode(2), absl::StatusCode::kCancelled) << "a message that comes late";
    EXPECT_EQ(First(a_), before + 1);
    NameRound(7);  // the trainer is still a member
    EXPECT_EQ(Place(2).word.number, 2u);
  }
}

TEST_F(RoundTest, AMemberWhoseCallIsCancelledIsOutOfTheRoundHere) {
  Make(UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum));
  NameRound(5);
  Offer(2);
  optimizer_->Withdraw(last_ticket_);
  EXPECT_EQ(LastCode(2), absl::StatusCode::kCancelled);
  Offer(1);
  EXPECT_TRUE(answers_[1].back().ok());
  Offer(2);
  EXPECT_EQ(LastCode(2), absl::StatusCode::kCancelled);
}

// The lead did not know of the end when it named the round.
TEST_F(RoundTest, AMemberWhoseSessionHasEndedIsNotWaitedForByALaterWord) {
  Make(UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum));
  NameRound(5);
  optimizer_->EndSession({2, 1});
  Offer(1);
  EXPECT_TRUE(answers_[1].back().ok());
  Offer(2);
  EXPECT_EQ(LastCode(2), absl::StatusCode::kAborted);
  TakeTurn(1, 7, 7);
  EXPECT_EQ(Place(1).word.number, 2u) << "the seat is empty";
}

// Trainer 2 loses its session with this owner, and creates the optimizer again in the next one.
TEST_F(RoundTest, ATurnOfAFormerSessionIsNotExpectedOnceItsTrainerHasJoinedAgain) {
  enum class Notice { kBeforeItJoins, kBeforeTheWord, kLast };  // of the end of its session
  for (const Notice notice : {Notice::kBeforeItJoins, Notice::kBeforeTheWord, Notice::kLast}) {
    SCOPED_TRACE(static_cast<int>(notice));
    answers_.clear();
    epochs_.clear();
    Make(UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum));
    const float before = First(a_);
    for (uint64_t n : {1, 2}) optimizer_->Join(Session(n), 3);
    NameRound(5);
    if (notice == Notice::kBeforeItJoins) optimizer_->EndSession({2, 1});
    epochs_[2] = 2;
    optimizer_->Join(Session(2), 7);
    if (notice == Notice::kBeforeTheWord) optimizer_->EndSession({2, 1});
    Offer(1, {1, 4});
    ASSERT_EQ(answers_[1].size(), 1u) << "nobody comes in the turn of the session that has ended";
    EXPECT_EQ(answers_[1][0]->trainers, 1);
    if (notice == Notice::kLast) optimizer_->EndSession({2, 1});
    optimizer_->Join(Session(2), 11);  // another part of the trainer's program joins too
    TakeTurn(2, 10, 10);               // first: its place was empty, so nobody would wait for it
    TakeTurn(1, 9, 9);
    ASSERT_EQ(Place(2).word.members.size(), 2u) << turns_[2].back();
    Offer(1, {1, 8});
    EXPECT_EQ(answers_[1].size(), 1u) << "its turn of the new session is waited for";
    Offer(2, {2, 8});
    ASSERT_EQ(answers_[1].size(), 2u);
    EXPECT_EQ(answers_[1][1]->trainers, 2);
    EXPECT_EQ(First(a_), before + 4);
  }
}

TEST_F(RoundTest, AMemberThatJoinsAgainEndsTheWaitForItsFormerSession) {
  Make(UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum));
  for (uint64_t n : {1, 2}) optimizer_->Join(Session(n), 3);
  NameRound(5);
  Offer(1, {1, 4});
  ASSERT_TRUE(answers_.empty());
  epochs_[2] = 2;
  optimizer_->Join(Session(2), 7);
  ASSERT_EQ(answers_[1].size(), 1u);
  EXPECT_EQ(answers_[1][0]->trainers, 1);
  Offer(2, {2, 4});
  EXPECT_EQ(LastCode(2), absl::StatusCode::kCancelled) << "a message of the former session";
  TakeTurn(2, 10, 10);
  EXPECT_EQ(turns_[2].size(), 1u) << "it has its place, not a second one: " << turns_[2].back();
  TakeTurn(1, 9, 9);
  EXPECT_EQ(Place(2).word.members.size(), 2u);
}

// The step was applied here and failed on another owner, where it is tried again.
TEST_F(RoundTest, AStepThatWasAppliedBeforeTakesPartWithoutItsGradients) {
  Make(UpdateMode::Synchronous(2));
  NameRound(5);
  Offer(1, {1, 4});
  Offer(2, {2, 4});
  EXPECT_EQ(First(a_), 1.5f);
  NameRound(7, /*measures=*/true);
  Measure(1, {1, 4});
  Measure(2, {2, 5});
  ASSERT_TRUE(measured_[1][0].ok()) << measured_[1][0].status();
  EXPECT_EQ(*measured_[1][0], 4 * kElements);
  EXPECT_EQ(*measured_[2][0], 4 * kElements);
  Offer(1, {1, 4});
  Offer(2, {2, 5});
  ASSERT_TRUE(answers_[1][1].ok()) << answers_[1][1].status();
  EXPECT_TRUE(answers_[1][1]->repeated);
  EXPECT_EQ(answers_[2][1]->trainers, 1);
  EXPECT_EQ(First(a_), 3.5f);
}

TEST_F(RoundTest, MembersThatWouldClipByOtherNormsAreToldBeforeAnythingIsApplied) {
  Make(UpdateMode::Synchronous(2));
  TakeTurn(1, 5, 5, true);
  StepRequest other;
  other.step_id = {2, 6};
  other.measures = true;
  other.clip_norm = 3;
  other.member = {{2, 1}, "c"};
  absl::Status refused;
  other.done = [&](const absl::StatusOr<StepResult>& result) { refused = result.status(); };
  optimizer_->TakeTurn(std::move(other));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("norm 3"), std::string::npos) << refused;
}

TEST_F(RoundTest, AStepThatIsGivenUpWhileItWaitsIsInNoRound) {
  Make(UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum));
  const GlobalId step = Offer(1);
  optimizer_->GiveUp(step.incarnation, step.counter);
  EXPECT_TRUE(answers_.empty()) << "only steps before it were given up";
  optimizer_->GiveUp(step.incarnation, step.counter + 1);
  EXPECT_EQ(LastCode(1), absl::StatusCode::kCancelled);
  Offer(2);
  EXPECT_TRUE(answers_[2].empty()) << "trainer 1 has yet to step";
  Offer(1, step);
  EXPECT_EQ(LastCode(1), absl::StatusCode::kCancelled) << "it arrives after it was given up";
  Offer(1);
  EXPECT_EQ(First(a_), 3);
}

TEST_F(RoundTest, AMessageOfLeavingThatComesLateDropsNoLaterStep) {
  Make(UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum));
  const GlobalId step = Offer(1);
  optimizer_->Leave({1, 1}, step.counter);
  EXPECT_TRUE(answers_.empty());
  optimizer_->Leave({1, 1}, step.counter + 1);
  EXPECT_EQ(LastCode(1), absl::StatusCode::kAborted);
}

TEST_F(RoundTest, AQuestionThatComesAfterItsTurnWasEndedGetsNone) {
  Make(UpdateMode::BoundedStaleness(0, UpdateMode::WhenStale::kWait));
  optimizer_->EndTurn({1, 1}, {1, 7}, false);
  TakeTurn(1, 7, 7);
  ASSERT_EQ(turns_[1].size(), 1u);
  EXPECT_EQ(turns_[1][0].code(), absl::StatusCode::kCancelled);
  TakeTurn(2, 3, 3);
  ASSERT_EQ(turns_[2].size(), 1u) << "nobody has the turn";
  EXPECT_TRUE(turns_[2][0].ok());
}

TEST_F(RoundTest, ATurnWhoseEndWasLostIsOverWithTheTrainersNext) {
  Make(UpdateMode::BoundedStaleness(1, UpdateMode::WhenStale::kWait));
  TakeTurn(1, 7, 7);
  TakeTurn(1, 9, 9);
  ASSERT_EQ(turns_[1].size(), 2u);
  EXPECT_TRUE(turns_[1][1].ok());
  TakeTurn(2, 3, 3);
  EXPECT_TRUE(turns_[2].empty());
  optimizer_->EndTurn({1, 1}, {1, 9}, false);
  EXPECT_EQ(turns_[2].size(), 1u);
}

TEST_F(RoundTest, PacedTrainersWaitForTheSlow) {
  Make(UpdateMode::BoundedStaleness(1, UpdateMode::WhenStale::kWait).WithUnknownVersions());
  Offer(1);
  Offer(2);
  Offer(2);
  EXPECT_EQ(answers_[2].size(), 1u);  // otherwise the next gradient of trainer 1 would be too old
  Offer(1);
  EXPECT_EQ(answers_[1].size(), 2u);
  EXPECT_EQ(answers_[2].size(), 2u);
  EXPECT_EQ(First(a_), 6);
}

// The gradients of waiting steps belong to parameters of the former life.
TEST_F(RoundTest, StepsThatWaitEndWithTheirLife) {
  Make(UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum));
  ASSERT_TRUE(optimizer_->SetLife({{1, 1}, {}}).ok());
  life_ = {1, 1};
  Offer(1);
  ASSERT_TRUE(optimizer_->SetLife({{1, 2}, {}}).ok());
  ASSERT_EQ(answers_[1].size(), 1u) << "nobody waits for a life that is over";
  EXPECT_EQ(answers_[1][0].status().code(), absl::StatusCode::kFailedPrecondition);
  Offer(2);
  EXPECT_EQ(answers_[2][0].status().code(), absl::StatusCode::kFailedPrecondition);
  life_ = {1, 2};
  Offer(1);
  Offer(2);
  ASSERT_TRUE(answers_[2].back().ok()) << answers_[2].back().status();
  EXPECT_EQ(First(a_), 3) << "of the next life only";
  Offer(1);
  optimizer_->EndLife(store::ChangingForTests::Make());
  EXPECT_EQ(answers_[1].back().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(optimizer_->stats().waiting, 0u);
  EXPECT_FALSE(optimizer_->SetLife({{1, 3}, {}}).ok()) << "an end is for ever";
}

TEST_F(RoundTest, APacedStepThatWaitsEndsWithItsLife) {
  Make(UpdateMode::BoundedStaleness(0, UpdateMode::WhenStale::kWait).WithUnknownVersions());
  ASSERT_TRUE(optimizer_->SetLife({{1, 1}, {}}).ok());
  life_ = {1, 1};
  Offer(1);
  Offer(2);  // waits for trainer 1
  ASSERT_EQ(optimizer_->stats().waiting, 1u);
  ASSERT_TRUE(optimizer_->SetLife({{1, 2}, {}, LifeStage::kLoading}).ok());
  ASSERT_EQ(answers_[2].size(), 1u);
  EXPECT_EQ(answers_[2][0].status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(First(a_), 1);
}

}  // namespace
}  // namespace psd::optim
