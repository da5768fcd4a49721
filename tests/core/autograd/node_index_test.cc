#include "core/autograd/node_index.h"

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/autograd/node.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

class Leaf : public Node {
 public:
  absl::string_view Name() const override { return "Leaf"; }
  absl::Status Apply(const PassContext&, absl::Span<Tensor>, absl::Span<Tensor>) override {
    return absl::OkStatus();
  }
};

using Numbered = std::pair<size_t, bool>;

TEST(NodeIndexTest, NumbersNodesInTheOrderOfTheirArrival) {
  Leaf a, b;
  NodeIndex index;
  EXPECT_EQ(index.Find(&a), std::nullopt);
  EXPECT_EQ(index.Insert(&a), Numbered(0, true));
  EXPECT_EQ(index.Insert(&b), Numbered(1, true));
  EXPECT_EQ(index.Insert(&a), Numbered(0, false));
  EXPECT_EQ(index.Find(&b), std::optional<size_t>(1));
  EXPECT_EQ(index.size(), 2u);
}

TEST(NodeIndexTest, TwoIndicesOverTheSameNodesDoNotDisturbEachOther) {
  Leaf a, b, c;
  NodeIndex first, second;
  first.Insert(&a);
  first.Insert(&b);
  EXPECT_EQ(second.Insert(&b), Numbered(0, true));
  EXPECT_EQ(second.Insert(&c), Numbered(1, true));
  EXPECT_EQ(second.Insert(&a), Numbered(2, true));
  EXPECT_EQ(first.Insert(&c), Numbered(2, true));
  EXPECT_EQ(first.Find(&b), std::optional<size_t>(1));
  EXPECT_EQ(second.Find(&b), std::optional<size_t>(0));
}

TEST(NodeIndexTest, WhatAnotherIndexHeldKeepsItsNumberWhenThatOneEnds) {
  Leaf a;
  NodeIndex second;
  {
    NodeIndex first;
    first.Insert(&a);
    second.Insert(&a);
  }
  EXPECT_EQ(second.Insert(&a), Numbered(0, false));
  NodeIndex third;
  EXPECT_EQ(third.Insert(&a), Numbered(0, true));
  EXPECT_EQ(second.Find(&a), std::optional<size_t>(0));
}

TEST(NodeIndexTest, AClearedIndexKnowsNothingAndHoldsNothing) {
  Leaf a, b;
  NodeIndex index;
  index.Insert(&a);
  index.Clear();
  EXPECT_EQ(index.Find(&a), std::nullopt);
  EXPECT_EQ(index.Insert(&b), Numbered(0, true));
  EXPECT_EQ(index.Insert(&a), Numbered(1, true));
}

TEST(NodeIndexTest, IndicesOfSeveralThreadsShareNodes) {
  std::vector<Leaf> nodes(100);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&nodes] {
      for (int round = 0; round < 50; ++round) {
        NodeIndex index;
        for (Leaf& node : nodes) index.Insert(&node);
        for (size_t i = 0; i < nodes.size(); ++i)
          EXPECT_EQ(index.Find(&nodes[i]), std::optional<size_t>(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace psd
