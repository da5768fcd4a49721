#include "core/rref/by_owner.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/future.h"
#include "gtest/gtest.h"

namespace psd::rref {
namespace {

// "a" has the items 0 and 2 of a request, "b" has 1 and 3.
std::vector<OwnerPart> TwoParts() {
  return {{"a", {0, 2}}, {"b", {1, 3}}};
}

TEST(PartsByOwnerTest, AReferenceToNothingIsNamed) {
  EXPECT_EQ(PartsByOwner({RRef()}).status(),
            absl::InvalidArgumentError("RRef 0 of 1 refers to nothing"));
  EXPECT_TRUE(PartsByOwner({})->empty());
}

TEST(AskOwnersTest, AnswersComeInTheOrderOfTheRequest) {
  const std::vector<std::string> items = {"w", "x", "y", "z"};
  std::vector<Promise<std::vector<std::string>>> promises(2);
  std::vector<std::string> asked;
  auto answer = AskOwners<std::string>(TwoParts(), [&](const OwnerPart& part) {
    for (const std::string& item : part.Of(items)) asked.push_back(part.owner + item);
    return promises[part.owner == "a" ? 0 : 1].future();
  });
  EXPECT_EQ(asked, (std::vector<std::string>{"aw", "ay", "bx", "bz"}));
  promises[1].Set(std::vector<std::string>{"one", "three"});
  EXPECT_FALSE(answer.IsReady());
  promises[0].Set(std::vector<std::string>{"zero", "two"});
  ASSERT_TRUE(answer.IsReady());
  EXPECT_EQ(*answer.Wait(), (std::vector<std::string>{"zero", "one", "two", "three"}));
}

TEST(AskOwnersTest, TheFirstErrorIsTheAnswer) {
  std::vector<Promise<std::vector<int>>> promises(2);
  auto answer = AskOwners<int>(TwoParts(), [&](const OwnerPart& part) {
    return promises[part.owner == "a" ? 0 : 1].future();
  });
  promises[1].Set(absl::UnavailableError("b is gone"));
  ASSERT_TRUE(answer.IsReady());
  EXPECT_EQ(answer.Wait().status(), absl::UnavailableError("b is gone"));
}

TEST(AskOwnersTest, ARequestForNothingIsAnswered) {
  const auto ask = [](const OwnerPart&) { return Future<std::vector<int>>(); };
  EXPECT_TRUE(AskOwners<int>({}, ask).Wait()->empty());
}

}  // namespace
}  // namespace psd::rref
