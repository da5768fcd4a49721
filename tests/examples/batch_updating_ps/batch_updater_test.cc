#include "examples/batch_updating_ps/batch_updater.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "examples/batch_updating_ps/functions.h"
#include "examples/batch_updating_ps/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd::examples {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

std::vector<Tensor> Gradients(float w0, float w1, float b) {
  return {Tensor::Of<float>({1, 2}, {w0, w1}), Tensor::Of<float>({1}, {b})};
}
bool Never() {
  return false;
}
bool Always() {
  return true;
}
std::vector<float> WeightOf(const Values& model) {
  return Elements(Must(ReadValue<Tensor>(model[0])));
}

TEST(BatchUpdaterTest, AllOfABatchGetTheModelSteppedOnceWithTheMean) {
  BatchUpdater updater(InitialModel(), /*trainers=*/2, /*lr=*/0.5);
  const Future<Values> first = updater.UpdateAndFetch("a", Gradients(1, 0, 2), Never);
  EXPECT_FALSE(first.IsReady());
  EXPECT_EQ(updater.updates(), 0);
  const Future<Values> second = updater.UpdateAndFetch("b", Gradients(3, 4, 2), Never);
  for (const Future<Values>& answer : {first, second}) {
    ASSERT_TRUE(answer.IsReady());
    EXPECT_THAT(WeightOf(Must(answer.Wait())), ElementsAre(-1, -1));
  }
  EXPECT_EQ(updater.updates(), 1);
  EXPECT_THAT(WeightOf(updater.Fetch()), ElementsAre(-1, -1));
}

TEST(BatchUpdaterTest, ATrainerIsInABatchOnceUnlessItGaveUp) {
  BatchUpdater updater(InitialModel(), 2, 1);
  const Future<Values> parked = updater.UpdateAndFetch("a", Gradients(1, 1, 1), Never);
  EXPECT_EQ(updater.UpdateAndFetch("a", Gradients(1, 1, 1), Never).Wait().status().code(),
            absl::StatusCode::kAlreadyExists);
  BatchUpdater other(InitialModel(), 2, 1);
  const Future<Values> given_up = other.UpdateAndFetch("a", Gradients(9, 9, 9), Always);
  const Future<Values> again = other.UpdateAndFetch("a", Gradients(1, 1, 1), Never);
  EXPECT_FALSE(again.IsReady());
  Must(other.UpdateAndFetch("b", Gradients(1, 1, 1), Never).Wait());
  EXPECT_THAT(WeightOf(Must(again.Wait())), ElementsAre(-1, -1));
}

TEST(BatchUpdaterTest, GradientsThatDoNotFitAreRefusedAndNotCounted) {
  BatchUpdater updater(InitialModel(), 1, 1);
  const auto refused = updater.UpdateAndFetch("a", {Tensor::Scalar<float>(1)}, Never);
  EXPECT_THAT(refused.Wait().status().message(), HasSubstr("1 gradients for a model of 2"));
  const auto shape =
      updater.UpdateAndFetch("a", {Tensor::Scalar<float>(1), Tensor::Of<float>({1}, {1})}, Never);
  EXPECT_THAT(shape.Wait().status().message(), HasSubstr("gradient 0 is f32[]"));
  EXPECT_EQ(updater.updates(), 0);
}

class BatchTrainingTest : public ::testing::Test {
 protected:
  static constexpr int kSteps = 40;
  static constexpr double kLr = 0.2;

  worker::RuntimeOptions Options() const {
    worker::RuntimeOptions options;
    options.functions = MakeFunctions(updater_);
    return options;
  }
  static Points PointsOf(int trainer) {
    return Must(MakePoints(32, static_cast<uint64_t>(trainer)));
  }

  std::shared_ptr<BatchUpdater> updater_ =
      std::make_shared<BatchUpdater>(InitialModel(), kTrainers, kLr);
  TestOwner server_{"owner0", Options()};
};

TEST_F(BatchTrainingTest, TrainersTogetherTrainAsOneWouldOnAllOfTheData) {
  std::vector<std::unique_ptr<Worker>> trainers;
  for (int i = 0; i < kTrainers; ++i) {
    trainers.push_back(StartTrainer(absl::StrCat("trainer", i), {server_.address()}));
  }
  std::vector<std::vector<double>> losses(kTrainers);
  std::vector<std::thread> threads;
  for (int i = 0; i < kTrainers; ++i) {
    threads.emplace_back(
        [&, i] { losses[i] = Must(TrainOn(*trainers[i], "owner0", PointsOf(i), kSteps)); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(updater_->updates(), kSteps);  // one for each batch, not one for each trainer
  for (const std::vector<double>& mine : losses) EXPECT_LT(mine.back(), mine.front() / 100);

  BatchUpdater alone(InitialModel(), 1, kLr);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Tensor> model;
    for (const Value& value : alone.Fetch()) model.push_back(Must(ReadValue<Tensor>(value)));
    std::vector<Tensor> mean;
    for (size_t k = 0; k < model.size(); ++k) {
      Variable sum;
      for (int i = 0; i < kTrainers; ++i) {
        const auto part = Must(Differentiate(*trainers[0], model, PointsOf(i)));
        sum = i == 0 ? Variable(part.gradients[k]) : sum + part.gradients[k];
      }
      mean.push_back((sum / double{kTrainers}).tensor());
    }
    Must(alone.UpdateAndFetch("all", mean, Never).Wait());
  }
  EXPECT_THAT(WeightOf(updater_->Fetch()), Pointwise(FloatNear(1e-5), WeightOf(alone.Fetch())));
}

TEST_F(BatchTrainingTest, WrongArgumentsAreToldToTheTrainer) {
  const auto trainer = StartTrainer("trainer0", {server_.address()});
  const absl::Status text =
      trainer->RpcSync("owner0", Function::Registered("model.update_and_fetch"), {"x"}).status();
  EXPECT_EQ(text.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd::examples
