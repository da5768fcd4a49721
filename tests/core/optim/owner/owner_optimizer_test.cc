#include "core/optim/owner/owner_optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/autograd/read_version.h"
#include "core/base/ids.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/options/option_groups.h"
#include "core/optim/steps/step_records.h"
#include "core/store/store.h"
#include "core/store/value.h"
#include "core/store/write_claims.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/optim/owner/owner_fixture.h"
#include "tests/core/store/changing_for_tests.h"

namespace psd::optim {
namespace {

using store::EntryPtr;
using store::Store;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(OwnerOptimizerTest, StepsWhatHasAGradient) {
  auto a = NewParameter("a", Full(1)), b = NewParameter("b", Full(1));
  auto optimizer = *NewOptimizer(kSgd1, {a, b});
  EXPECT_EQ(optimizer->TypeName(), "optimizer/sgd");
  EXPECT_EQ(optimizer->table().ids(), (std::vector<GlobalId>{a->id, b->id}));
  auto result = Step(*optimizer, {{b->id, Full(0.25), 1}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->steps_accepted, 1u);
  EXPECT_EQ(result->parameters_stepped, 1);
  EXPECT_FALSE(result->repeated);
  EXPECT_EQ(First(a), 1);
  EXPECT_EQ(a->parameter->version(), 1u);
  EXPECT_EQ(First(b), 0.75f);
  EXPECT_EQ(b->parameter->version(), 2u);
}

// The step count does not move either, which Adam's bias correction would show.
TEST_F(OwnerOptimizerTest, OPT_05_OPT_06_WithoutGradientNothingMoves) {
  auto a = NewParameter("a", Full(1)), b = NewParameter("b", Full(1));
  auto optimizer = *NewOptimizer({"adam", {{"lr", 0.1}}}, {a, b});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Step(*optimizer, {{b->id, Full(0.5 + i)}}).ok());
  ASSERT_TRUE(Step(*optimizer, {{a->id, Full(0.5)}}).ok());
  auto fresh = NewParameter("fresh", Full(1));
  auto other = *NewOptimizer({"adam", {{"lr", 0.1}}}, {fresh});
  ASSERT_TRUE(Step(*other, {{fresh->id, Full(0.5)}}).ok());
  EXPECT_EQ(First(a), First(fresh));
}

TEST_F(OwnerOptimizerTest, EmptyStepIsAStep) {
  auto a = NewParameter("a", Full(1));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  auto result = Step(*optimizer, {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->steps_accepted, 1u);
  EXPECT_EQ(result->parameters_stepped, 0);
  auto none = *NewOptimizer(kSgd1, {});  // OPT-18
  EXPECT_TRUE(Step(*none, {}).ok());
}

TEST_F(OwnerOptimizerTest, RepeatedStepIsAppliedOnce) {
  auto a = NewParameter("a", Full(1));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  const GlobalId id = ids_.Next();
  ASSERT_TRUE(Step(*optimizer, {{a->id, Full(0.5)}}, id).ok());
  auto again = Step(*optimizer, {{a->id, Full(0.5)}}, id);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->repeated);
  EXPECT_EQ(again->steps_accepted, 1u);
  EXPECT_EQ(First(a), 0.5f);
  EXPECT_EQ(a->parameter->version(), 2u);
}

TEST_F(OwnerOptimizerTest, CancelledStepChangesNothingAndMayBeRepeated) {
  auto a = NewParameter("a", Full(1));
  auto optimizer = *NewOptimizer({"adam", {}}, {a});
  const GlobalId id = ids_.Next();
  auto cancelled = Step(*optimizer, {{a->id, Full(0.5)}}, id, [] { return false; });
  EXPECT_EQ(cancelled.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(a->parameter->version(), 1u);
  EXPECT_EQ(optimizer->stats().steps, 0u);
  int asked = 0;
  auto applied = Step(*optimizer, {{a->id, Full(0.5)}}, id, [&] { return ++asked, true; });
  ASSERT_TRUE(applied.ok());
  EXPECT_FALSE(applied->repeated);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(a->parameter->version(), 2u);
}

TEST_F(OwnerOptimizerTest, OPT_19_OPT_42_BadGradientsChangeNothing) {
  auto a = NewParameter("layer/weight", Full(1)), b = NewParameter("b", Full(1));
  auto optimizer = *NewOptimizer({"adam", {}}, {a, b});
  const ParameterGradient good{a->id, Full(1)};
  const auto refused = [&](ParameterGradient bad) {
    auto result = Step(*optimizer, {good, std::move(bad)});
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(result.status().message());
  };
  EXPECT_THAT(refused({b->id, *Tensor::Zeros({9}, DType::kF32)}),
              AllOf(HasSubstr("'b'"), HasSubstr("f32[8]"), HasSubstr("f32[9]")));
  EXPECT_THAT(refused({b->id, *Tensor::Zeros({kElements}, DType::kF64)}), HasSubstr("f64[8]"));
  EXPECT_THAT(refused({b->id, Tensor()}), HasSubstr("undefined"));
  EXPECT_THAT(refused({{5, 5}, Full(1)}), HasSubstr("0000000000000005/5"));
  EXPECT_THAT(refused(good), HasSubstr("two gradients for 'layer/weight'"));
  EXPECT_EQ(a->parameter->version(), 1u);
  EXPECT_EQ(First(a), 1);
  EXPECT_EQ(optimizer->stats().steps, 0u);
}

TEST_F(OwnerOptimizerTest, CreationRefusesWhatItCannotStep) {
  auto a = NewParameter("a", Full(1));
  const auto message = [&](std::vector<EntryPtr> parameters) {
    auto refused = NewOptimizer({"adam", {}}, std::move(parameters));
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(refused.status().message());
  };
  EXPECT_THAT(message({a, a}), AllOf(HasSubstr("'a'"), HasSubstr("twice")));
  EXPECT_THAT(message({a, *store_->Put(5, false)}), HasSubstr("int"));
  EXPECT_THAT(message({NewParameter("frozen", Full(1), false)}), HasSubstr("require"));
  auto half = NewOptimizer({"adam", {{"stochastic_rounding", 1}}},
                           {NewParameter("half", *Tensor::Zeros({2}, DType::kF16))});
  EXPECT_EQ(half.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(half.status().message(), AllOf(HasSubstr("'half'"), HasSubstr("f16")));
  EXPECT_EQ(a->parameter->stats().spares, 0);
}

// The memory of a value besides its elements, if its name has one character.
constexpr size_t kEntry = store::kEntryBytes + 1;

TEST_F(OwnerOptimizerTest, MemoryIsReservedAtCreationAndGivenBack) {
  Reset(0);
  {
    auto a = NewParameter("a", Full(1)), b = NewParameter("b", Full(1));
    auto optimizer = *NewOptimizer({"adam", {}}, {a, b});
    EXPECT_EQ(used(), 2 * (4 * kBytes + kEntry));  // current version, spare buffer and two moments
    EXPECT_EQ(optimizer->stats().state_bytes, 2 * 2 * kBytes);
    ASSERT_TRUE(Step(*optimizer, {{a->id, Full(1)}, {b->id, Full(1)}}).ok());
    EXPECT_EQ(used(), 2 * (4 * kBytes + kEntry));
    optimizer.reset();
    EXPECT_EQ(used(), 2 * (kBytes + kEntry));
    ASSERT_TRUE(store_->Erase((*store_->Drop(store::ChangingForTests::Make(), "a"))->id));
    ASSERT_TRUE(store_->Erase((*store_->Drop(store::ChangingForTests::Make(), "b"))->id));
  }
  EXPECT_EQ(used(), 0u);
}

TEST_F(OwnerOptimizerTest, RefusedCreationKeepsNothing) {
  Reset(7 * kBytes + 2 * kEntry);
  auto a = NewParameter("a", Full(1)), b = NewParameter("b", Full(1));
  auto refused = NewOptimizer({"adam", {}}, {a, b});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(),
              AllOf(HasSubstr("'b'"), HasSubstr("32 bytes"), HasSubstr("1250 bytes")));
  EXPECT_EQ(used(), 2 * (kBytes + kEntry));
}

TEST_F(OwnerOptimizerTest, StepsGoOnWhenTheBudgetIsFull) {
  Reset(2 * kBytes + kEntry);
  auto a = NewParameter("a", Full(1));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  auto held = *a->parameter->Pin();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Step(*optimizer, {{a->id, Full(1)}}).ok());
  EXPECT_EQ(held.tensor.data<float>()[0], 1);
  EXPECT_EQ(First(a), -4);
}

TEST_F(OwnerOptimizerTest, StalenessIsMeasured) {
  auto a = NewParameter("a", Full(1));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  EXPECT_EQ(Step(*optimizer, {{a->id, Full(1), 1}})->max_staleness, 0u);
  EXPECT_EQ(Step(*optimizer, {{a->id, Full(1), 1}})->max_staleness, 1u);
  EXPECT_EQ(Step(*optimizer, {{a->id, Full(1), 0}})->max_staleness, 0u);
  EXPECT_EQ(Step(*optimizer, {{a->id, Full(1), 1}})->max_staleness, 3u);
  auto stats = optimizer->stats();
  EXPECT_EQ(stats.steps, 4u);
  EXPECT_EQ(stats.max_staleness, 3u);
  EXPECT_NEAR(stats.mean_staleness, 4.0 / 3, 1e-12);
}

TEST_F(OwnerOptimizerTest, StridedGradientsAndDoubles) {
  auto a = NewParameter("a", *Tensor::Zeros({2, 2}, DType::kF64));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  auto gradient = Tensor::Of<double>({2, 2}, {1, 2, 3, 4}).View({2, 2}, {1, 2}, 0);
  ASSERT_TRUE(Step(*optimizer, {{a->id, gradient}}).ok());
  const auto pinned = *a->parameter->Pin();
  EXPECT_EQ(pinned.tensor.data<double>()[1], -3);
}

TEST_F(OwnerOptimizerTest, NanAndInfinityPassThrough) {
  auto a = NewParameter("a", Full(1));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  Tensor gradient = Full(0);
  gradient.mutable_data<float>()[2] = std::numeric_limits<float>::quiet_NaN();
  gradient.mutable_data<float>()[3] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(Step(*optimizer, {{a->id, gradient}}).ok());
  const auto pinned = *a->parameter->Pin();
  EXPECT_EQ(pinned.tensor.data<float>()[1], 1);
  EXPECT_TRUE(std::isnan(pinned.tensor.data<float>()[2]));
  EXPECT_EQ(pinned.tensor.data<float>()[3], -std::numeric_limits<float>::infinity());
}

TEST_F(OwnerOptimizerTest, StepWaitsForWhoWritesItsParameters) {
  auto a = NewParameter("a", Full(1)), b = NewParameter("b", Full(1));
  auto optimizer = *NewOptimizer(kSgd1, {a, b});
  auto writer = store_->write_claims().Claim({a->id}, [](store::WriteClaims::ClaimId) {});
  bool done = false;
  StartStep(*optimizer, {{a->id, Full(1)}},
            [&](absl::StatusOr<StepResult> result) { done = result.ok(); });
  EXPECT_FALSE(done);
  auto other = *NewOptimizer(kSgd1, {b});
  EXPECT_TRUE(Step(*other, {{b->id, Full(1)}}).ok());  // another parameter is not held up
  store_->write_claims().Release(writer);
  EXPECT_TRUE(done);
  EXPECT_EQ(First(a), 0);
}

TEST_F(OwnerOptimizerTest, OPT_14_ConcurrentStepsLoseNoUpdate) {
  constexpr int kThreads = 24, kSteps = 20;
  auto a = NewParameter("a", *Tensor::Zeros({64, 64}, DType::kF32));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  const Tensor gradient = *Tensor::Full({64, 64}, DType::kF32, -1);
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kSteps; ++i) {
        StartStep(*optimizer, {{a->id, gradient}},
                  [&](absl::StatusOr<StepResult> result) { finished += result.ok(); });
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(finished, kThreads * kSteps);
  const auto pinned = *a->parameter->Pin();
  const float* data = pinned.tensor.data<float>();
  EXPECT_TRUE(std::all_of(data, data + 64 * 64, [](float x) { return x == kThreads * kSteps; }));
  EXPECT_EQ(a->parameter->version(), 1u + kThreads * kSteps);
}

// Two optimizers step overlapping parameters while others read them. Every version is whole, and no
// update is lost.
TEST_F(OwnerOptimizerTest, OPT_13_OptimizersThatShareParametersAreSerial) {
  auto a = NewParameter("a", Full(0)), b = NewParameter("b", Full(0));
  auto c = NewParameter("c", Full(0));
  auto left = *NewOptimizer(kSgd1, {a, b}), right = *NewOptimizer(kSgd1, {b, c});
  constexpr int kSteps = 300;
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  const auto stepper = [&](OwnerOptimizer* optimizer, GlobalId first, GlobalId second) {
    for (int i = 0; i < kSteps; ++i) {
      StartStep(*optimizer, {{first, Full(-1)}, {second, Full(-1)}},
                [](absl::StatusOr<StepResult>) {});
    }
  };
  std::thread one(stepper, left.get(), a->id, b->id), two(stepper, right.get(), b->id, c->id);
  std::thread reader([&] {
    while (!stop) {
      auto pinned = *b->parameter->Pin();
      const float* data = pinned.tensor.data<float>();
      torn += std::any_of(data, data + kElements, [&](float x) { return x != data[0]; });
    }
  });
  one.join();
  two.join();
  stop = true;
  reader.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(First(a), kSteps);
  EXPECT_EQ(First(b), 2 * kSteps);
  EXPECT_EQ(First(c), kSteps);
}

TEST_F(OwnerOptimizerTest, AnOldStepIsRefusedWhereItCannotBeTold) {
  auto a = NewParameter("a", Full(0));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  const GlobalId first = ids_.Next();
  ASSERT_TRUE(Step(*optimizer, {{a->id, Full(-1)}}, first).ok());
  for (size_t i = 1; i < kRememberedSteps; ++i) ASSERT_TRUE(Step(*optimizer, {}).ok());
  EXPECT_TRUE(Step(*optimizer, {{a->id, Full(-1)}}, first)->repeated);
  ASSERT_TRUE(Step(*optimizer, {}).ok());
  absl::Status refused = Step(*optimizer, {{a->id, Full(-1)}}, first).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_EQ(First(a), 1);
}

TEST_F(OwnerOptimizerTest, StepsOfOthersDoNotMakeAStepForgotten) {
  auto a = NewParameter("a", Full(0));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  const GlobalId first = ids_.Next();
  ASSERT_TRUE(Step(*optimizer, {{a->id, Full(-1)}}, first).ok());
  for (uint64_t i = 1; i <= 2 * kRememberedSteps; ++i)
    ASSERT_TRUE(Step(*optimizer, {}, {1 + i % 3, i}).ok());
  EXPECT_TRUE(Step(*optimizer, {{a->id, Full(-1)}}, first)->repeated);
  EXPECT_EQ(First(a), 1);
}

TEST_F(OwnerOptimizerTest, OPT_48_GroupsHaveTheirOwnOptions) {
  auto a = NewParameter("a", Full(1)), b = NewParameter("b", Full(1));
  auto optimizer = *OwnerOptimizer::Create({{kSgd1, {a}}, {{"sgd", {{"lr", 0.5}}}, {b}}}, {},
                                           registry_, *store_, *changes_);
  ASSERT_TRUE(Step(*optimizer, {{a->id, Full(1)}, {b->id, Full(1)}}).ok());
  EXPECT_EQ(First(a), 0);
  EXPECT_EQ(First(b), 0.5f);
  EXPECT_EQ(optimizer->num_groups(), 2u);
  EXPECT_EQ(optimizer->options(1)->spec.options.at("lr"), 0.5);
  EXPECT_FALSE(optimizer->options(2).ok());
  EXPECT_FALSE(
      OwnerOptimizer::Create({{kSgd1, {}}, {{"adam", {}}, {}}}, {}, registry_, *store_, *changes_)
          .ok());
  EXPECT_FALSE(OwnerOptimizer::Create({}, {}, registry_, *store_, *changes_).ok());
}

TEST_F(OwnerOptimizerTest, OPT_48_OptionsChangeBetweenSteps) {
  auto a = NewParameter("a", Full(1));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  const auto set = [&](std::map<std::string, double> changes, uint64_t version = 0,
                       GlobalId life = {}) {
    absl::StatusOr<GroupOptions> result = absl::UnknownError("not done");
    optimizer->SetOptions(0, std::move(changes), version, life,
                          [&](absl::StatusOr<GroupOptions> r) { result = std::move(r); });
    return result;
  };
  EXPECT_EQ(set({{"lr", 0.25}})->version, 2u);
  ASSERT_TRUE(Step(*optimizer, {{a->id, Full(1)}}).ok());
  EXPECT_EQ(First(a), 0.75f);
  EXPECT_EQ(set({{"lr", -1}}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(set({{"rate", 1}}).status().code(), absl::StatusCode::kInvalidArgument);
  auto refused = set({{"momentum", 0.9}});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("needs other state"));
  // The newest of the changes that the lead has numbered wins, in whatever order they arrive.
  EXPECT_EQ(set({{"lr", 0.5}}, 9)->version, 9u);
  EXPECT_EQ(set({{"lr", 0.125}}, 8)->spec.options.at("lr"), 0.5);
  ASSERT_TRUE(Step(*optimizer, {{a->id, Full(1)}}).ok());
  EXPECT_EQ(First(a), 0.25f);
}

TEST_F(OwnerOptimizerTest, OPT_48_AnOldLifesDecisionsDoNotDisplaceANewOnes) {
  constexpr GlobalId kOldLife{7, 1}, kLife{5, 1};
  auto a = NewParameter("a", Full(1));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  const auto set = [&](double lr, uint64_t version, GlobalId life) {
    absl::StatusOr<GroupOptions> result = absl::UnknownError("not done");
    optimizer->SetOptions(0, {{"lr", lr}}, version, life,
                          [&](absl::StatusOr<GroupOptions> r) { result = std::move(r); });
    return result.status();
  };
  ASSERT_TRUE(optimizer->SetLife({kOldLife, {{"owner0", 7}, {"owner1", 77}}}).ok());
  ASSERT_TRUE(set(0.5, 9, kOldLife).ok());
  // The lead has been restarted and counts from 1.
  ASSERT_TRUE(optimizer->SetLife({kLife, {{"owner0", 5}, {"owner1", 77}}}).ok());
  EXPECT_EQ(set(0.125, 10, kOldLife).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(set(1, 1, kLife).ok());
  EXPECT_TRUE(set(0.25, 2, kLife).ok());
  EXPECT_TRUE(set(1, 1, kLife).ok());  // it has been overtaken, so it changes nothing
  EXPECT_EQ(optimizer->options(0)->spec.options.at("lr"), 0.25);
}

TEST_F(OwnerOptimizerTest, OPT_48_SchedulesGoByAcceptedSteps) {
  auto a = NewParameter("a", Full(8));
  OptimizerSettings settings;
  settings.schedule = Schedule::Exponential(0.5);
  auto optimizer = *NewOptimizer(kSgd1, {a}, settings);
  ASSERT_TRUE(Step(*optimizer, {{a->id, Full(1)}}).ok());
  EXPECT_EQ(First(a), 7);
  auto cancelled = Step(*optimizer, {{a->id, Full(1)}}, {}, [] { return false; });
  EXPECT_FALSE(cancelled.ok());  // the step does not count for the schedule
  ASSERT_TRUE(Step(*optimizer, {{a->id, Full(1)}}).ok());
  EXPECT_EQ(First(a), 6.5f);
  StepTerms told;
  told.schedule_step = 3;
  ASSERT_TRUE(Step(*optimizer, {{a->id, Full(1)}}, {}, nullptr, told).ok());
  EXPECT_EQ(First(a), 6.375f);
  EXPECT_EQ(optimizer->options(0)->spec.options.at("lr"), 1);
}

TEST_F(OwnerOptimizerTest, OPT_48_OneCycleSetsTheMomentumToo) {
  OptimizerSettings settings;
  settings.schedule = Schedule::OneCycle(3);
  settings.schedule.rise = 2.0 / 3;
  settings.schedule.initial_divisor = 1;
  settings.schedule.cycle_momentum = true;
  settings.schedule.lowest_momentum = 0.25;
  settings.schedule.highest_momentum = 0.5;
  auto a = NewParameter("a", Full(8));
  auto optimizer = *NewOptimizer({"sgd", {{"lr", 1}, {"momentum", 0.9}}}, {a}, settings);
  ASSERT_TRUE(Step(*optimizer, {{a->id, Full(1)}}).ok());  // the momentum buffer is 1
  EXPECT_EQ(First(a), 7);
  ASSERT_TRUE(Step(*optimizer, {{a->id, Full(1)}}).ok());  // 0.25 * 1 + 1
  EXPECT_EQ(First(a), 5.75f);
  EXPECT_EQ(optimizer->options(0)->spec.options.at("momentum"), 0.9);
  EXPECT_TRUE(NewOptimizer({"adam", {}}, {NewParameter("b", Full(1))}, settings).ok());
}

TEST_F(OwnerOptimizerTest, OPT_48_OneCycleIsRefusedWithoutMomentum) {
  OptimizerSettings settings;
  settings.schedule = Schedule::OneCycle(3);
  settings.schedule.cycle_momentum = true;
  for (const OptimizerSpec& spec : {OptimizerSpec{"sgd", {}}, OptimizerSpec{"adagrad", {}}}) {
    const auto refused = NewOptimizer(spec, {NewParameter(spec.type, Full(1))}, settings);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.status().message(), HasSubstr("cycle_momentum"));
  }
}

TEST_F(OwnerOptimizerTest, TermsScaleAndLimitGradients) {
  auto a = NewParameter("a", Full(1));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  StepTerms terms;
  terms.gradient_scale = 0.25;
  terms.gradient_limit = 0.5;
  ASSERT_TRUE(Step(*optimizer, {{a->id, Full(1)}}, {}, nullptr, terms).ok());
  EXPECT_EQ(First(a), 0.75f);
  ASSERT_TRUE(Step(*optimizer, {{a->id, Full(100)}}, {}, nullptr, terms).ok());
  EXPECT_EQ(First(a), 0.25f);
}

TEST_F(OwnerOptimizerTest, ALifeIsChargedToTheBudget) {
  constexpr size_t kBudget = 1 << 16;
  Reset(kBudget);
  auto a = NewParameter("a", Full(1));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  const size_t before = store_->memory().used_bytes();
  OptimizerLife life{{1, 1}, {{std::string(100, 'a'), 7}}};
  ASSERT_TRUE(optimizer->SetLife(life).ok());
  const size_t one = store_->memory().used_bytes() - before;
  EXPECT_GE(one, 100u);
  ASSERT_TRUE(optimizer->SetLife({{1, 2}, life.owners}).ok());
  EXPECT_EQ(store_->memory().used_bytes() - before, one) << "of the life before no more";
  OptimizerLife large{{1, 3}, std::vector<LifeOwner>(kBudget / 100, life.owners[0])};
  EXPECT_EQ(optimizer->SetLife(large).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(optimizer->life().id, (GlobalId{1, 2}));
}

TEST_F(OwnerOptimizerTest, OverflowChangesNothingButTheLossScale) {
  auto a = NewParameter("a", Full(1));
  OptimizerSettings settings;
  settings.loss_scaling = LossScaling::Dynamic(8);
  auto optimizer = *NewOptimizer(kSgd1, {a}, settings);
  StepTerms terms;
  terms.loss_scale = 8;
  terms.overflow = true;
  const GlobalId id = ids_.Next();
  auto skipped = Step(*optimizer, {{a->id, Full(1)}}, id, nullptr, terms);
  ASSERT_TRUE(skipped.ok());
  EXPECT_TRUE(skipped->skipped);
  EXPECT_EQ(skipped->loss_scale, 4);
  EXPECT_EQ(skipped->steps_accepted, 0u);
  EXPECT_EQ(a->parameter->version(), 1u);
  EXPECT_TRUE(Step(*optimizer, {{a->id, Full(1)}}, id, nullptr, terms)->repeated);
  EXPECT_EQ(optimizer->stats().loss_scale, 4);
  EXPECT_EQ(optimizer->stats().skipped, 1u);
}

TEST_F(OwnerOptimizerTest, SumsOfPlansKeepTheOldestVersionAndEveryParameter) {
  auto a = NewParameter("a", Full(1)), b = NewParameter("b", Full(1)),
       c = NewParameter("c", Full(1));
  auto optimizer = *NewOptimizer(kSgd1, {a, b, c});
  const ParameterTable& table = optimizer->table();
  StepPlan sum = *table.Sum(*table.Plan({{b->id, Full(1), 3}, {a->id, Full(1), 1}}),
                            *table.Plan({{c->id, Full(4), 1}, {b->id, Full(2), 2}}));
  ASSERT_EQ(sum.gradients.size(), 3u);
  EXPECT_EQ(sum.indices, (std::vector<size_t>{0, 1, 2}));
  EXPECT_EQ(sum.gradients[1].gradient->data<float>()[0], 3);
  EXPECT_EQ(sum.gradients[1].version.oldest(), 2u);
  EXPECT_EQ(*SumOfSquares(sum), kElements * (1.0 + 9.0 + 16.0));
}

TEST_F(OwnerOptimizerTest, BoundedStalenessRefusesWhatIsTooOld) {
  auto a = NewParameter("a", Full(1));
  OptimizerSettings settings;
  settings.mode = UpdateMode::BoundedStaleness(1);
  auto optimizer = *NewOptimizer(kSgd1, {a}, settings);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Step(*optimizer, {{a->id, Full(1), 1}}).ok());
  auto refused = Step(*optimizer, {{a->id, Full(1), 1}});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("'a'"), HasSubstr("version 1")));
  EXPECT_EQ(a->parameter->version(), 3u);
  EXPECT_TRUE(Step(*optimizer, {{a->id, Full(1), 2}}).ok());
  const auto staleness = optimizer->staleness(10);
  ASSERT_EQ(staleness.size(), 1u);
  EXPECT_EQ(staleness[0].parameter, "a");
  EXPECT_EQ(staleness[0].last, 1u);
  EXPECT_EQ(staleness[0].most, 1u);
  EXPECT_EQ(staleness[0].steps, 3u);
}

TEST_F(OwnerOptimizerTest, AnUnknownVersionIsTooOldUnlessTheModeAllowsIt) {
  auto a = NewParameter("a", Full(1));
  OptimizerSettings settings;
  settings.mode = UpdateMode::BoundedStaleness(1);
  auto strict = *NewOptimizer(kSgd1, {a}, settings);
  settings.mode = settings.mode.WithUnknownVersions();
  auto lenient = *NewOptimizer(kSgd1, {a}, settings);
  auto refused = Step(*strict, {{a->id, Full(1), 0}});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("'a'"), HasSubstr("WithUnknown")));
  EXPECT_EQ(a->parameter->version(), 1u);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Step(*lenient, {{a->id, Full(1), 0}}).ok());
  // The known part of a sum of gradients is still checked.
  ReadVersion partly = 1;
  partly.Add(0);
  EXPECT_EQ(Step(*lenient, {{a->id, Full(1), partly}}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(OwnerOptimizerTest, OptionsThatADTypeDoesNotAllowAreRefusedLaterToo) {
  auto a = NewParameter("a", Full(1));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  absl::Status refused;
  optimizer->SetOptions(0, {{"stochastic_rounding", 1}}, 0, {},
                        [&](absl::StatusOr<GroupOptions> r) { refused = r.status(); });
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("bf16"));
  EXPECT_EQ(optimizer->options(0)->spec.options.at("stochastic_rounding"), 0);
}

TEST_F(OwnerOptimizerTest, LivesInTheStore) {
  auto a = NewParameter("a", Full(1));
  std::shared_ptr<store::Object> object = *NewOptimizer({"adam", {}}, {a});
  auto entry = *store_
                    ->GetOrCreate(store::ChangingForTests::Make(), "main", {},
                                  [&] { return store::Value(object); })
                    .Wait();
  EXPECT_EQ(entry->KindName(), "optimizer/adam");
}

// A load first ends the life and then claims the parameters one after the other. A step that waits
// for its claim since before the load must not be applied between two of these claims.
TEST_F(OwnerOptimizerTest, AStepWhoseLifeEndsBeforeItsClaimIsGrantedIsRefused) {
  const EntryPtr a = NewParameter("a", Full(5));
  auto optimizer = *NewOptimizer(kSgd1, {a});
  ASSERT_TRUE(optimizer->SetLife({{1, 1}, {}}).ok());
  store::WriteClaims::ClaimId import = 0;
  store_->write_claims().Claim({a->id}, [&](store::WriteClaims::ClaimId id) { import = id; });
  absl::StatusOr<StepResult> answer = absl::UnknownError("not done");
  StepRequest request;
  request.step_id = ids_.Next();
  request.life = {1, 1};
  request.plan = *optimizer->table().Plan({{a->id, Full(1)}});
  request.done = [&](absl::StatusOr<StepResult> result) { answer = std::move(result); };
  optimizer->Step(std::move(request));
  ASSERT_TRUE(optimizer->SetLife({{1, 2}, {}, LifeStage::kLoading}).ok());
  store_->write_claims().Release(import);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kFailedPrecondition) << answer.status();
  EXPECT_EQ(First(a), 5);
  EXPECT_EQ(optimizer->stats().steps, 0u);
}

}  // namespace
}  // namespace psd::optim
