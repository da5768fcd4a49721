#include "core/services/optimizers/optimizer_codec.h"

#include <cmath>
#include <limits>
#include <string>

#include "core/optim/owner/life_codec.h"
#include "gtest/gtest.h"

namespace psd::services {
namespace {

using optim::LossScaling;
using optim::OptimizerSettings;
using optim::Schedule;
using optim::StepTerms;
using optim::UpdateMode;

OptimizerSettings ThereAndBack(const OptimizerSettings& settings) {
  v1::CreateOptimizerRequest message;
  EncodeSettings(settings, message);
  return DecodeSettings(message);
}

TEST(OptimizerCodecTest, SettingsComeBackAsTheyWere) {
  OptimizerSettings settings;
  EXPECT_EQ(ThereAndBack(settings).ToString(), "");
  settings.schedule = Schedule::OneCycle(77).WithWarmup(3, 0.25);
  settings.schedule.linear = true;
  settings.schedule.rise = 0.125;
  settings.schedule.cycle_momentum = true;
  settings.schedule.highest_momentum = 0.875;
  settings.loss_scaling = LossScaling::Dynamic(1024);
  settings.mode =
      UpdateMode::BoundedStaleness(5, UpdateMode::WhenStale::kWait).WithUnknownVersions();
  EXPECT_EQ(ThereAndBack(settings).ToString(), settings.ToString());
  settings.loss_scaling = {};
  settings.mode = UpdateMode::Synchronous(9, UpdateMode::Reduction::kSum);
  EXPECT_EQ(ThereAndBack(settings).ToString(), settings.ToString());
  EXPECT_TRUE(ThereAndBack(settings).Check().ok());
}

TEST(OptimizerCodecTest, NumbersThatMeanNothingAreRefusedByTheCheck) {
  for (uint32_t number : {0u, 9u, 256u + 1u, 0xffffffffu}) {
    v1::CreateOptimizerRequest schedule, mode;
    schedule.mutable_schedule()->set_kind(number);
    EXPECT_FALSE(DecodeSettings(schedule).Check().ok()) << number;
    mode.mutable_mode()->set_kind(number);
    EXPECT_FALSE(DecodeSettings(mode).Check().ok()) << number;
  }
  v1::CreateOptimizerRequest crowd;
  EncodeSettings({{}, {}, UpdateMode::Synchronous(2)}, crowd);
  crowd.mutable_mode()->set_trainers(0xffffffffu);
  EXPECT_FALSE(DecodeSettings(crowd).Check().ok());
  v1::CreateOptimizerRequest scaling;
  scaling.mutable_loss_scaling()->set_initial(std::nan(""));
  EXPECT_FALSE(DecodeSettings(scaling).Check().ok());
}

TEST(OptimizerCodecTest, TermsComeBackAsTheyWere) {
  StepTerms terms;
  v1::StepRequest plain;
  EncodeTerms(terms, plain);
  EXPECT_EQ(plain.ByteSizeLong(), 0u) << "a plain step costs nothing";
  EXPECT_EQ(DecodeTerms(plain).value(), terms);
  terms = {0.25, 3, 0, 1024, true};
  v1::StepRequest message;
  EncodeTerms(terms, message);
  EXPECT_EQ(DecodeTerms(message).value(), terms);
}

TEST(OptimizerCodecTest, TermsThatAreNoNumbersAreRefused) {
  for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    v1::StepRequest scale, loss;
    scale.set_gradient_scale(bad);
    EXPECT_EQ(DecodeTerms(scale).status().code(), absl::StatusCode::kInvalidArgument);
    loss.set_loss_scale(bad);
    EXPECT_EQ(DecodeTerms(loss).status().code(), absl::StatusCode::kInvalidArgument);
  }
  for (double bad : {std::nan(""), -1.0}) {
    v1::StepRequest limit;
    limit.set_gradient_limit(bad);
    EXPECT_EQ(DecodeTerms(limit).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(OptimizerCodecTest, DDP_32_SeatsComeBackAndOneCostsNothing) {
  v1::StepRequest message;
  EXPECT_EQ(DecodeSeats(message), 1u);
  EncodeSeats(1, message);
  EXPECT_EQ(message.ByteSizeLong(), 0u);
  EncodeSeats(3, message);
  EXPECT_EQ(DecodeSeats(message), 3u);
}

TEST(OptimizerCodecTest, ColumnsMustBeOfOneLength) {
  v1::StepRequest request;
  request.add_context_incarnations(1);
  EXPECT_EQ(DecodeIds(request.context_incarnations(), request.context_counters()).status().code(),
            absl::StatusCode::kInvalidArgument);
  v1::OptionsReply reply;
  reply.add_option_names("lr");
  EXPECT_EQ(DecodeGroupOptions(reply).status().code(), absl::StatusCode::kInvalidArgument);
  const optim::GroupOptions options{{"adam", {{"lr", 0.5}}}, 7};
  const auto back = DecodeGroupOptions(EncodeGroupOptions(options));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->spec, options.spec);
  EXPECT_EQ(back->version, 7u);
}

TEST(RoundCodecTest, PlacesAndAnswersComeBack) {
  const optim::RoundWord word{7, {{1, 5}, {2, 6}}};
  v1::RoundPlace message;
  EncodePlace({{2, 6}, 4, word}, message);
  const auto place = DecodePlace(2, message);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->turn, (GlobalId{2, 6}));
  EXPECT_EQ(place->turns_ended_before, 4u);
  EXPECT_EQ(place->word, word);
  message.clear_member_counters();
  EXPECT_EQ(DecodePlace(2, message).status().code(), absl::StatusCode::kInvalidArgument);
  message.clear_member_incarnations();
  message.set_number(0);
  EXPECT_EQ(DecodePlace(2, message).status().code(), absl::StatusCode::kInvalidArgument);

  optim::StepResult result;
  result.steps_accepted = 3;
  result.round = word;
  const auto answer = DecodeTurnReply(EncodeTurnReply(result));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->steps_accepted, 3u);
  EXPECT_EQ(answer->round, word);
}

TEST(RoundCodecTest, WishesComeBackAndMustBeInRange) {
  v1::TurnRequest message;
  TurnWishes wishes;
  EncodeWishes(wishes, message);
  EXPECT_FALSE(message.has_clip_norm()) << "nothing is said of what is not wished";
  EXPECT_EQ(DecodeWishes(message)->clip_norm, wishes.clip_norm);
  wishes.terms.gradient_scale = 0.5;
  wishes.terms.gradient_limit = 3;
  wishes.clip_norm = 2;
  wishes.measures = true;
  EncodeWishes(wishes, message);
  const auto back = DecodeWishes(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->terms, wishes.terms);
  EXPECT_EQ(back->clip_norm, 2);
  EXPECT_TRUE(back->measures);
  message.set_clip_norm(-1);
  EXPECT_EQ(DecodeWishes(message).status().code(), absl::StatusCode::kInvalidArgument);
  message.set_clip_norm(1);
  message.set_gradient_scale(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(DecodeWishes(message).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LifeCodecTest, NamesAndIncarnationsComeBack) {
  v1::CreateOptimizerRequest message;
  optim::EncodeLife({{1, 2}, {{"a", 3}, {"b", 4}}}, message);
  const auto life = optim::DecodeLife(message);
  ASSERT_TRUE(life.ok()) << life.status();
  EXPECT_EQ(life->id, (GlobalId{1, 2}));
  ASSERT_EQ(life->owners.size(), 2u);
  EXPECT_EQ(life->owners[1].name, "b");
  EXPECT_EQ(life->owners[1].incarnation, 4u);
}

// An owner keeps the names that a peer sends and passes them on, so they are checked.
TEST(LifeCodecTest, OwnersAreWorkersOfDifferentNames) {
  for (const std::string& name :
       {std::string("a"), std::string("no\nname"), std::string(), std::string(1 << 20, 'x')}) {
    v1::CreateOptimizerRequest message;
    optim::EncodeLife({{1, 2}, {{"a", 3}, {name, 4}}}, message);
    EXPECT_EQ(optim::DecodeLife(message).status().code(), absl::StatusCode::kInvalidArgument)
        << name;
  }
  v1::CreateOptimizerRequest fewer;
  optim::EncodeLife({{1, 2}, {{"a", 3}, {"b", 4}}}, fewer);
  fewer.mutable_life_owner_incarnations()->RemoveLast();
  EXPECT_EQ(optim::DecodeLife(fewer).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LifeCodecTest, APartIsOnlyOfALifeOfItsOwner) {
  const optim::OptimizerLife life{{1, 2}, {{"a", 3}, {"b", 4}}};
  EXPECT_TRUE(optim::CheckLifeHere(life, {"b", 4}).ok());
  EXPECT_FALSE(optim::CheckLifeHere(life, {"b", 5}).ok()) << "an earlier incarnation";
  EXPECT_FALSE(optim::CheckLifeHere(life, {"c", 3}).ok());
}

}  // namespace
}  // namespace psd::services
