#include "core/store/value.h"

#include <memory>
#include <string>

#include "core/tensor/tensor.h"
#include "gtest/gtest.h"

namespace psd::store {
namespace {

class Counter : public Object {
 public:
  std::string TypeName() const override { return "counter"; }
};

TEST(Value, NamesItsKind) {
  EXPECT_EQ(Value().KindName(), "none");
  EXPECT_TRUE(Value().IsNone());
  EXPECT_EQ(Value(true).KindName(), "bool");
  EXPECT_EQ(Value(3).KindName(), "int");
  EXPECT_EQ(Value(2.5).KindName(), "float");
  EXPECT_EQ(Value("x").KindName(), "string");
  EXPECT_EQ(Value(Tensor::Of<float>({2, 1}, {1, 2})).KindName(), "tensor f32[2, 1]");
  EXPECT_EQ(Value(Variable()).KindName(), "failed tensor");
  EXPECT_EQ(Value::OfList({1, "b", 2.0}).KindName(), "list of 3");
  EXPECT_EQ(Value::OfMap({{"a", 1}}).KindName(), "map of 1");
  EXPECT_EQ(Value(std::shared_ptr<Object>(std::make_shared<Counter>())).KindName(), "counter");
}

TEST(Value, ListsNestAndShare) {
  Value inner = Value::OfList({1, 2});
  Value outer = Value::OfList({inner, "x"});
  ASSERT_NE(outer.AsList(), nullptr);
  EXPECT_EQ((*outer.AsList())[0].AsList(), inner.AsList());
  EXPECT_EQ(outer.AsMap(), nullptr);
}

TEST(Value, CountsTheBytesOfWhatItHolds) {
  EXPECT_EQ(Value().NumBytes(), 0u);
  EXPECT_EQ(Value(3).NumBytes(), 0u);
  EXPECT_EQ(Value("four").NumBytes(), 4u);
  const Value tensor(Tensor::Of<float>({2, 1}, {1, 2}));
  EXPECT_EQ(tensor.NumBytes(), 8u);
  EXPECT_EQ(Value(Variable()).NumBytes(), 0u);
  EXPECT_EQ(Value::OfList({tensor, tensor, 1}).NumBytes(), 16 + 3 * sizeof(Value));
  EXPECT_EQ(Value::OfMap({{"key", tensor}}).NumBytes(), 3 + 8 + sizeof(Value::Map::value_type));
  EXPECT_EQ(Value(std::shared_ptr<Object>(std::make_shared<Counter>())).NumBytes(), 0u);
}

TEST(Value, MapsAreSortedAndTheLastOfEqualKeysStays) {
  Value map = Value::OfMap({{"b", 1}, {"a", 2}, {"b", 3}});
  ASSERT_NE(map.AsMap(), nullptr);
  ASSERT_EQ(map.AsMap()->size(), 2u);
  EXPECT_EQ((*map.AsMap())[0].first, "a");
  EXPECT_EQ(*(*map.AsMap())[1].second.As<int64_t>(), 3);
  EXPECT_EQ(map.AsList(), nullptr);
}

}  // namespace
}  // namespace psd::store
