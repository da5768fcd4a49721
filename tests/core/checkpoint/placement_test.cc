#include "core/checkpoint/placement.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void AddValue(CheckpointIndex& index, const std::string& owner, const std::string& name,
              int64_t elements) {
  SavedValue value;
  value.owner = owner;
  value.name = name;
  value.shape = Shape{elements};
  index.values.push_back(value);
}

CheckpointIndex TwoOwners() {
  CheckpointIndex index;
  AddValue(index, "a", "w0", 10);
  AddValue(index, "a", "w1", 30);
  AddValue(index, "b", "w2", 20);
  AddValue(index, "b", "w3", 5);
  SavedOptimizer adam;
  adam.name = "main";
  adam.parameters = {{"b", "w2", 0, 1, {{"exp_avg", "f"}, {"exp_avg_sq", "f"}}, "f"},
                     {"a", "w0", 0, 1, {}, ""}};
  index.optimizers.push_back(adam);
  return index;
}

TEST(Placement, BackToWhereItWas) {
  auto placed = Place(TwoOwners(), {"a", "b", "c"}, {});
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_THAT(placed->values, ElementsAre("a", "a", "b", "b"));
  EXPECT_THAT(placed->optimizers[0], ElementsAre("b", "a"));
}

TEST(Placement, MissingOwnersAreSpreadByBytes) {
  // w2 and its state have the bytes of 60 elements, and the owner a already has 40.
  auto placed = Place(TwoOwners(), {"a", "c"}, {});
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_THAT(placed->values, ElementsAre("a", "a", "c", "a"));
  EXPECT_THAT(placed->optimizers[0], ElementsAre("c", "a"));
}

TEST(Placement, SpreadAndMap) {
  PlacementOptions options;
  options.spread = true;
  auto placed = Place(TwoOwners(), {"a", "b", "c"}, options);
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_THAT(placed->values, ElementsAre("c", "b", "a", "c"));
  options.spread = false;
  options.owners = {{"a", "c"}};
  placed = Place(TwoOwners(), {"b", "c"}, options);
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_THAT(placed->values, ElementsAre("c", "c", "b", "b"));
}

TEST(Placement, EverythingOnOneOwner) {
  auto placed = Place(TwoOwners(), {"z"}, {});
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_THAT(placed->values, ElementsAre("z", "z", "z", "z"));
}

TEST(Placement, NamesThatWouldMeet) {
  CheckpointIndex index = TwoOwners();
  AddValue(index, "b", "w0", 1);
  EXPECT_TRUE(Place(index, {"a", "b"}, {}).ok());
  const absl::Status met = Place(index, {"z"}, {}).status();
  EXPECT_EQ(met.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(met.message()), HasSubstr("'w0' of a and that of b would meet on z"));

  index = TwoOwners();
  SavedOptimizer other;
  other.name = "main";
  other.parameters = {{"a", "w1", 0, 1, {}, ""}};
  index.optimizers.push_back(other);
  EXPECT_EQ(Place(index, {"z"}, {}).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST(Placement, NamesThatAreNone) {
  PlacementOptions options;
  options.owners = {{"nobody", "a"}};
  EXPECT_FALSE(Place(TwoOwners(), {"a", "b"}, options).ok());
  options.owners = {{"a", "nobody"}};
  EXPECT_FALSE(Place(TwoOwners(), {"a", "b"}, options).ok());
  EXPECT_FALSE(Place(TwoOwners(), {}, {}).ok());
}

}  // namespace
}  // namespace psd::checkpoint
