// Values of every kind and name are saved and loaded.

#include <memory>
#include <string>
#include <vector>

#include "client/checkpoint.h"
#include "client/psd.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/checkpoint/fake_file_system.h"

namespace psd {
namespace {

using checkpoint::FakeFileSystem;
using ::testing::HasSubstr;

class CheckpointValuesTest : public ::testing::Test {
 protected:
  CheckpointValuesTest() {
    saving_.dir = loading_.dir = "saves";
    saving_.files = loading_.files = std::make_shared<FakeFileSystem>();
  }
  // An empty owner, and a trainer that is attached to it.
  struct Job {
    TestOwner owner{"owner0"};
    std::unique_ptr<Worker> trainer = StartTrainer("trainer", {owner.address()});
  };
  static std::string BytesOf(Worker& worker, const std::string& name) {
    const auto values = Must(worker.ToHere({Must(worker.Lookup("owner0", name))}));
    return std::string(values[0].As<Variable>()->tensor().AsBuffer().view());
  }

  SaveOptions saving_;
  LoadOptions loading_;
};

Tensor Numbers(DType dtype, int64_t count) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(0.125f * static_cast<float>(i % 97) - 3);
  return Must(ops::Cast(Tensor::Of<float>({count}, absl::MakeConstSpan(numbers)), dtype));
}

// Makes a step in which the gradient of the parameter is the parameter itself.
void Step(Worker& worker, DistributedOptimizer& optimizer, const RRef& parameter) {
  Context context = Must(worker.NewContext());
  const std::vector<PulledParameter> pulled = Must(worker.Pull({parameter}));
  ASSERT_TRUE(context.PushGradient(parameter, pulled[0].elements, pulled[0].version).ok());
  const absl::Status stepped = optimizer.Step(context);
  ASSERT_TRUE(stepped.ok()) << stepped;
}

TEST_F(CheckpointValuesTest, NarrowParametersContinueWithTheSameBits) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const uint64_t whole_bytes : {uint64_t{1} << 20, uint64_t{500}}) {  // whole and in pieces
      saving_.files = loading_.files = std::make_shared<FakeFileSystem>();
      saving_.whole_bytes = loading_.whole_bytes = whole_bytes;
      saving_.batch_bytes = loading_.batch_bytes = 333;
      Job first, second;
      const RRef w = MakeParameter(*first.trainer, "owner0", "w", Numbers(dtype, 777));
      auto optimizer = Must(DistributedOptimizer::Create(*first.trainer, "main", Adam{}, {w}));
      Step(*first.trainer, *optimizer, w);
      Must(SaveModel(*first.trainer, saving_));
      const std::string at_save = BytesOf(*first.trainer, "w");
      Step(*first.trainer, *optimizer, w);
      Must(LoadModel(*second.trainer, loading_));
      EXPECT_EQ(BytesOf(*second.trainer, "w"), at_save);
      const RRef again = Must(second.trainer->Lookup("owner0", "w"));
      auto continued = Must(DistributedOptimizer::Create(*second.trainer, "main", Adam{}, {again}));
      Step(*second.trainer, *continued, again);
      EXPECT_EQ(BytesOf(*second.trainer, "w"), BytesOf(*first.trainer, "w"));
    }
  }
}

TEST_F(CheckpointValuesTest, OddNamesComeBack) {
  const std::vector<std::string> names = {
      "../../etc/passwd", "/a//b/", ".",    "..",         "state.0.exp_avg", "__metadata",
      "a\"b\\c",          "{}",     "%s%n", "index.json", "<&>'`$(x)",       std::string(255, 'n')};
  Job first, second;
  std::vector<RRef> parameters;
  for (size_t i = 0; i < names.size(); ++i)
    parameters.push_back(MakeParameter(*first.trainer, "owner0", names[i],
                                       Numbers(DType::kF32, 5 + static_cast<int64_t>(i))));
  auto optimizer =
      Must(DistributedOptimizer::Create(*first.trainer, "m/\"x\"", Adam{}, parameters));
  Step(*first.trainer, *optimizer, parameters[0]);
  Must(SaveModel(*first.trainer, saving_));
  EXPECT_EQ(Must(LoadModel(*second.trainer, loading_)).values.at("owner0"), names.size());
  for (const std::string& name : names)
    EXPECT_EQ(BytesOf(*second.trainer, name), BytesOf(*first.trainer, name)) << name;
}

TEST_F(CheckpointValuesTest, WhatASaveCouldNotNameIsRefusedAtItsCreation) {
  Job job;
  for (const std::string& name :
       {std::string("gr\xc3\xb6\xc3\x9f"
                    "e"),
        std::string("a b"), std::string("line\n"), std::string(1 << 16, 'n')}) {
    const absl::Status refused = job.trainer->GetOrCreate("owner0", name, Zeros({2})).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("name"));
  }
}

// The safetensors format reserves this name for its own metadata.
TEST_F(CheckpointValuesTest, AValueCalledMetadataIsSavedOrRefusedWithItsName) {
  Job first, second;
  MakeParameter(*first.trainer, "owner0", "__metadata__", Numbers(DType::kF32, 4));
  const auto saved = SaveModel(*first.trainer, saving_);
  ASSERT_FALSE(saved.ok());
  EXPECT_THAT(std::string(saved.status().message()), HasSubstr("__metadata__"));
}

}  // namespace
}  // namespace psd
