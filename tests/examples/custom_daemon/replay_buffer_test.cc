// Calls the functions of the custom daemon from a trainer, through the public API.

#include "client/calls.h"
#include "examples/custom_daemon/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd::examples {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CustomDaemonTest : public ::testing::Test {
 protected:
  static worker::RuntimeOptions Options() {
    worker::RuntimeOptions options;
    options.functions = MakeFunctions();
    return options;
  }
  ObjectProxy NewBuffer(Worker& worker, int capacity) {
    return ObjectProxy(worker,
                       Must(worker.Remote("owner0", Named("replay_buffer.new"), {capacity})));
  }
  static Function Named(const std::string& name) { return Function::Registered(name); }
  static Tensor Sample(float value) { return Tensor::Of<float>({2}, {value, -value}); }
  static Tensor TensorOf(const Values& results) { return Must(ReadValue<Tensor>(results[0])); }

  TestOwner owner_{"owner0", Options()};
  std::unique_ptr<Worker> trainer_ = StartTrainer("trainer0", {owner_.address()});
};

TEST_F(CustomDaemonTest, StandardizeGivesMeanZeroAndDeviationOne) {
  const Tensor x = Tensor::Of<float>({4}, {1, 3, 1, 3});
  const Values y = Must(trainer_->RpcSync("owner0", Named("standardize"), {x}));
  EXPECT_THAT(Elements(TensorOf(y)), ElementsAre(-1, 1, -1, 1));
  const Values flat =
      Must(trainer_->RpcSync("owner0", Named("standardize"), {Tensor::Of<float>({2}, {5, 5})}));
  EXPECT_THAT(Elements(TensorOf(flat)), Each(0));
}

TEST_F(CustomDaemonTest, AFunctionFetchesAndKeepsTensors) {
  const RRef x = Must(trainer_->GetOrCreate("owner0", "x", Full({2}, 7)));
  const Values kept = Must(trainer_->RpcSync("owner0", Named("standardize_from"), {x}));
  const RRef result = RRef::FromValue(kept[0]);
  EXPECT_EQ(result.owner(), "owner0");
  EXPECT_THAT(Elements(TensorOf(Must(trainer_->ToHere({result})))), Each(0));
}

TEST_F(CustomDaemonTest, WrongArgumentsAreToldToTheCaller) {
  const absl::Status text = trainer_->RpcSync("owner0", Named("standardize"), {"x"}).status();
  EXPECT_EQ(text.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(text.message(), HasSubstr("argument 0 is string, not a tensor"));
  const ObjectProxy buffer = NewBuffer(*trainer_, 3);
  ASSERT_TRUE(buffer.RpcSync("replay_buffer.append", {Sample(1)}).ok());
  const Tensor longer = Tensor::Of<float>({3}, {1, 2, 3});
  EXPECT_THAT(buffer.RpcSync("replay_buffer.append", {longer}).status().message(),
              HasSubstr("samples here are f32[2]"));
  EXPECT_FALSE(buffer.RpcSync("replay_buffer.when_filled", {4}).ok());
  const RRef refused = Must(trainer_->Remote("owner0", Named("replay_buffer.new"), {0}));
  EXPECT_EQ(ObjectProxy(*trainer_, refused).RpcSync("replay_buffer.sample", {1, 1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CustomDaemonTest, ABufferKeepsTheLastSamples) {
  const ObjectProxy buffer = NewBuffer(*trainer_, 2);
  EXPECT_EQ(buffer.RpcSync("replay_buffer.sample", {1, 1}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  for (float value : {1.0f, 2.0f, 3.0f}) {
    ASSERT_TRUE(buffer.RpcSync("replay_buffer.append", {Sample(value)}).ok());
  }
  const Tensor drawn = TensorOf(Must(buffer.RpcSync("replay_buffer.sample", {50, /*seed=*/7})));
  EXPECT_EQ(drawn.shape(), Shape({50, 2}));
  bool second = false, third = false;
  for (int row = 0; row < 50; ++row) {
    const float value = drawn.data<float>()[2 * row];
    second |= value == 2;
    third |= value == 3;
    EXPECT_NE(value, 1);
  }
  EXPECT_TRUE(second && third);
  const Tensor again = TensorOf(Must(buffer.RpcSync("replay_buffer.sample", {50, 7})));
  EXPECT_EQ(Elements(again), Elements(drawn));
}

TEST_F(CustomDaemonTest, WhoWaitsForSamplesIsAnsweredWhenAnotherTrainerAppendsThem) {
  const ObjectProxy buffer = NewBuffer(*trainer_, 10);
  const Future<Values> filled = buffer.RpcAsync("replay_buffer.when_filled", {2});
  ASSERT_TRUE(buffer.RpcSync("replay_buffer.append", {Sample(1)}).ok());
  EXPECT_FALSE(filled.IsReady());
  ASSERT_TRUE(buffer.RpcSync("replay_buffer.append", {Sample(2)}).ok());
  EXPECT_EQ(Must(ReadValue<int64_t>(Must(filled.Wait())[0])), 2);
}

}  // namespace
}  // namespace psd::examples
