#include "examples/tinyshakespeare/text.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::examples {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> Ids(const Tensor& tensor) {
  return {tensor.data<int64_t>(), tensor.data<int64_t>() + tensor.NumElements()};
}

// 180 characters for training and 20 for the test.
Text Alternating() {
  std::string characters;
  for (int i = 0; i < 100; ++i)
    characters += i < 90 ? "ba"
                         : "\xff"
                           "a";
  return Text::Create(characters).value();
}

TEST(TextTest, BytesHaveIdsInTheirOrder) {
  const Text text = Alternating();
  EXPECT_EQ(text.characters(), 3);
  EXPECT_EQ(text.train_size(), 180 - kContext);
  EXPECT_EQ(text.test_size(), 20 - kContext);
  const auto train = text.TrainBatch({1, text.train_size() - 1});
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ(train->contexts.shape(), Shape({2, kContext}));
  EXPECT_THAT(Ids(train->contexts), ElementsAre(0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1));
  EXPECT_THAT(Ids(train->next), ElementsAre(0, 0));
  const auto test = text.TestBatch({0, text.test_size() - 1});
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_THAT(Ids(test->contexts), ElementsAre(2, 0, 2, 0, 2, 0, 2, 0, 0, 2, 0, 2, 0, 2, 0, 2));
  EXPECT_THAT(Ids(test->next), ElementsAre(2, 0));
}

TEST(TextTest, TheLossByFrequencyIsThatOfTheTraining) {
  // Each of the 3 characters counts once more than it occurs in the training.
  const double a = 91.0 / 183, never = 1.0 / 183;
  EXPECT_NEAR(Alternating().LossByFrequency(), -(std::log(a) + std::log(never)) / 2, 1e-9);
}

TEST(TextTest, WhatIsNoTextIsRefused) {
  const absl::Status shorter = Text::Create(std::string(89, 'x')).status();
  EXPECT_TRUE(absl::IsInvalidArgument(shorter)) << shorter;
  EXPECT_THAT(std::string(shorter.message()), HasSubstr("89 characters; at least 90"));
  EXPECT_TRUE(Text::Create(std::string(90, 'x')).ok());
  const absl::Status missing = Text::Read("/nowhere/x.txt").status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/nowhere/x.txt"));
}

}  // namespace
}  // namespace psd::examples
