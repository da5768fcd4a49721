#include "core/store/store.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/base/memory_place.h"
#include "core/base/memory_scope.h"
#include "core/tensor/sparse_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/base/lent_block.h"
#include "tests/core/store/changing_for_tests.h"

namespace psd::store {
namespace {

const Changing kChanging = ChangingForTests::Make();

using ::testing::HasSubstr;

class Thing : public Object {
 public:
  std::string TypeName() const override { return "thing"; }
};

Tensor Full(double value) {
  return *Tensor::Full({4}, DType::kF32, value);
}

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() { Reset({}); }
  void Reset(StoreOptions options, size_t limit = 0) {
    options.memory = MemoryAccount::Create(limit, NewHeapAllocator());
    store_ = Store::Create(std::move(options), ids_);
  }
  absl::StatusOr<EntryPtr> Create(const std::string& name, Value value,
                                  CreateOptions options = {}) {
    return store_->GetOrCreate(kChanging, name, options, [value] { return value; }).Wait();
  }

  IdSource ids_{99};
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, NamedTensorIsAParameter) {
  CreateOptions options;
  options.requires_grad = true;
  auto entry = Create("layer1/weight", Full(2), options);
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ((*entry)->KindName(), "parameter f32[4]");
  EXPECT_EQ((*entry)->Label(), "'layer1/weight'");
  auto read = *(*entry)->Read();
  EXPECT_TRUE(read.As<Variable>()->requires_grad());
  EXPECT_EQ(read.As<Variable>()->key(), (*entry)->id);
  EXPECT_EQ(*store_->Lookup("layer1/weight"), *entry);
  EXPECT_EQ(*store_->Get((*entry)->id), *entry);
  EXPECT_FALSE(store_->Erase((*entry)->id));
}

TEST_F(StoreTest, WithoutGradItIsAConstant) {
  auto entry = *Create("running_mean", Full(2));
  EXPECT_NE(entry->parameter, nullptr);
  EXPECT_FALSE(entry->Read()->As<Variable>()->requires_grad());
}

TEST_F(StoreTest, OtherValuesStayAsTheyAre) {
  auto number = *Create("epoch", 3);
  EXPECT_EQ(*number->Read()->As<int64_t>(), 3);
  auto labels = *Create("labels", Tensor::Of<int64_t>({2}, {1, 2}));
  EXPECT_EQ(labels->parameter, nullptr);
  EXPECT_EQ(labels->KindName(), "tensor i64[2]");
  CreateOptions grad;
  grad.requires_grad = true;
  auto refused = Create("counts", Tensor::Of<int64_t>({2}, {1, 2}), grad);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("'counts'"));
  EXPECT_FALSE(store_->Put(5, true).ok());
  EXPECT_FALSE(store_->Put(Variable(), false).ok());
}

TEST_F(StoreTest, SecondCreatorGetsTheSame) {
  CreateOptions options;
  options.creation = "uniform(seed=1)";
  auto first = *Create("w", Full(1), options);
  EXPECT_EQ(*Create("w", Full(2), options), first);
  EXPECT_EQ(*Create("w", Full(2)), first);
  options.creation = "uniform(seed=2)";
  auto refused = Create("w", Full(1), options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("seed=1"));
  EXPECT_THAT(refused.status().message(), HasSubstr("seed=2"));
}

TEST_F(StoreTest, WhoComesDuringCreationWaitsForIt) {
  Future<EntryPtr> second, stranger;
  CreateOptions options, other;
  options.creation = "a";
  other.creation = "b";
  auto first = store_->GetOrCreate(kChanging, "w", options, [&]() -> absl::StatusOr<Value> {
    second = store_->GetOrCreate(kChanging, "w", options, [] { return Value(2); });
    stranger = store_->GetOrCreate(kChanging, "w", other, [] { return Value(3); });
    EXPECT_FALSE(second.IsReady());
    EXPECT_FALSE(store_->Lookup("w").ok());
    return Value(1);
  });
  ASSERT_TRUE(first.Wait().ok());
  EXPECT_EQ(*second.Wait(), *first.Wait());
  EXPECT_EQ(stranger.Wait().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(StoreTest, FailedCreationFailsAllAndFreesTheName) {
  Future<EntryPtr> second;
  auto first = store_->GetOrCreate(kChanging, "w", {}, [&]() -> absl::StatusOr<Value> {
    second = store_->GetOrCreate(kChanging, "w", {}, [] { return Value(2); });
    return absl::ResourceExhaustedError("no luck");
  });
  EXPECT_EQ(first.Wait().status().message(), "no luck");
  EXPECT_EQ(second.Wait().status().message(), "no luck");
  EXPECT_TRUE(Create("w", 5).ok());
}

TEST_F(StoreTest, OneOfManyConcurrentCreatorsCreates) {
  std::atomic<int> created{0};
  std::vector<EntryPtr> entries(16);
  std::vector<std::thread> threads;
  for (auto& entry : entries) {
    threads.emplace_back([&] {
      entry = *store_->GetOrCreate(kChanging, "w", {}, [&] { return ++created, Value(Full(1)); })
                   .Wait();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(created, 1);
  for (const auto& entry : entries) EXPECT_EQ(entry, entries[0]);
}

TEST_F(StoreTest, AMisspeltNameHasANearestOne) {
  ASSERT_TRUE(Create("layer1/weight", 1).ok());
  EXPECT_EQ(store_->NearestTo("layer1/wieght"), "layer1/weight");
  EXPECT_EQ(store_->NearestTo("zzz"), "");
}

TEST_F(StoreTest, TheErrorForAnUnknownNameTellsNoOtherName) {
  ASSERT_TRUE(Create("layer1/weight", 1).ok());
  for (const absl::Status& missing : {store_->Lookup("layer1/wieght").status(),
                                      store_->Drop(kChanging, "layer1/wieght").status()}) {
    EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(missing.message(), "no value is called 'layer1/wieght'");
  }
}

TEST_F(StoreTest, BadNames) {
  for (const std::string& name : {std::string(), std::string("a b"), std::string("a\n"),
                                  std::string("\xc3\xa9"), std::string(513, 'x')}) {
    EXPECT_EQ(Create(name, 1).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_TRUE(Create(std::string(512, 'x'), 1).ok());
}

TEST_F(StoreTest, DropOfOneValueLeavesAnotherItsName) {
  const EntryPtr first = *Create("n", Value(1));
  ASSERT_TRUE(store_->Drop(kChanging, "n", first->id).ok());
  const EntryPtr second = *Create("n", Value(1));
  EXPECT_EQ(store_->Drop(kChanging, "n", first->id).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(*store_->Lookup("n"), second);
  EXPECT_EQ(*store_->Drop(kChanging, "n", second->id), second);
  EXPECT_EQ(store_->Drop(kChanging, "n", second->id).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(StoreTest, DropEndsTheNameAndGivesMemoryBack) {
  auto entry = *Create("w", Full(1));
  EXPECT_EQ(store_->memory().used_bytes(), kEntryBytes + 17) << "with its name";
  EXPECT_EQ(*store_->Drop(kChanging, "w"), entry);
  EXPECT_FALSE(store_->Lookup("w").ok());
  EXPECT_TRUE(store_->Get(entry->id).ok());  // the value is anonymous now
  EXPECT_TRUE(store_->Erase(entry->id));
  EXPECT_FALSE(store_->Get(entry->id).ok());
  EXPECT_TRUE(entry->Read().ok());  // `entry` still holds the value
  entry.reset();
  EXPECT_EQ(store_->memory().used_bytes(), 0u);
  EXPECT_TRUE(Create("w", Full(2)).ok());
}

TEST_F(StoreTest, AnonymousValues) {
  auto entry = *store_->Put(Full(1), false);
  EXPECT_EQ(entry->parameter, nullptr);
  EXPECT_EQ(store_->Put(entry->id, 5, false).status().code(), absl::StatusCode::kAlreadyExists);
  auto given = *store_->Put({55, 7}, 5, false);
  EXPECT_EQ((*store_->Get({55, 7})), given);
  EXPECT_EQ(given->Label(), "value 0000000000000037/7");
  EXPECT_NE((*store_->Put(Full(1), true))->parameter, nullptr);
  EXPECT_EQ(store_->stats().anonymous, 3u);
  EXPECT_TRUE(store_->Erase({55, 7}));
  EXPECT_FALSE(store_->Erase({55, 7}));
  auto gone = store_->Get({55, 7});
  EXPECT_EQ(gone.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(gone.status().message(), HasSubstr("0000000000000037/7"));
  EXPECT_FALSE(store_->Put(GlobalId{}, 5, false).ok());
}

TEST_F(StoreTest, AnonymousValuesAreChargedUntilNobodyHoldsThem) {
  Reset({}, 1000);
  constexpr size_t kUsed = kEntryBytes + 80;
  auto entry = *store_->Put(*Tensor::Zeros({20}, DType::kF32), false);
  EXPECT_EQ(store_->memory().used_bytes(), kUsed);
  const absl::Status refused = store_->Put(*Tensor::Zeros({10}, DType::kF32), false).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"552 bytes", "1000 bytes", "592 are in use", "value "}) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
  }
  EXPECT_TRUE(store_->Erase(entry->id));
  EXPECT_EQ(store_->memory().used_bytes(), kUsed) << "a holder is left";
  entry.reset();
  EXPECT_EQ(store_->memory().used_bytes(), 0u);
  EXPECT_TRUE(store_->Put(*Tensor::Zeros({10}, DType::kF32), false).ok());
}

TEST_F(StoreTest, Bounds) {
  StoreOptions options;
  options.max_values = 2;
  Reset(options, 2 * kEntryBytes + 200);
  auto large = Create("large", *Tensor::Zeros({200}, DType::kF32));
  EXPECT_EQ(large.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(large.status().message(), HasSubstr("'large'"));
  EXPECT_THAT(large.status().message(), HasSubstr("800"));
  EXPECT_TRUE(Create("a", 1).ok());
  EXPECT_TRUE(store_->Put(2, false).ok());
  EXPECT_EQ(Create("b", 1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store_->Put(2, false).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(store_->Erase((*store_->Drop(kChanging, "a"))->id));
  EXPECT_TRUE(Create("b", 1).ok());
}

TEST_F(StoreTest, AGroupIsFoundTogetherUntilOneOfItIsErased) {
  std::vector<GlobalId> ids;
  for (int i = 0; i < 20; ++i) ids.push_back((*store_->Put(Value(i), false))->id);
  const EntryGroupPtr group = *store_->GetGroup(ids);
  ASSERT_EQ(group->entries.size(), 20u);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(group->entries[i]->id, ids[i]);
  const std::vector<GlobalId> two = {ids[1], ids[0]};
  EXPECT_EQ((*store_->GetGroup(two))->entries[0]->id, ids[1]);
  EXPECT_TRUE(store_->Erase((*store_->Put(Value(1), false))->id));
  EXPECT_EQ(*store_->GetGroup(ids), group) << "neither displaces it";
  const std::vector<GlobalId> turned(ids.rbegin(), ids.rend());
  EXPECT_EQ((*store_->GetGroup(turned))->entries[0]->id, ids[19]);
  EXPECT_EQ((*store_->GetGroup(ids))->entries[0]->id, ids[0]);
  EXPECT_TRUE(store_->Erase(ids[7]));
  const absl::Status gone = store_->GetGroup(ids).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(gone.message(), HasSubstr(ids[7].ToString()));
}

TEST_F(StoreTest, TheGroupsOfAFewCallersAreRememberedTogether) {
  std::vector<std::vector<GlobalId>> lists(5);
  for (std::vector<GlobalId>& ids : lists)
    for (int i = 0; i < 20; ++i) ids.push_back((*store_->Put(Value(i), false))->id);
  std::vector<EntryGroupPtr> groups;
  for (int i = 0; i < 4; ++i) groups.push_back(*store_->GetGroup(lists[i]));
  for (int i = 3; i >= 0; --i) EXPECT_EQ(*store_->GetGroup(lists[i]), groups[i]) << i;
  EXPECT_TRUE(store_->GetGroup(lists[4]).ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(*store_->GetGroup(lists[i]), groups[i]) << i;
  EXPECT_NE(*store_->GetGroup(lists[3]), groups[3]) << "asked for the longest time ago";
}

TEST_F(StoreTest, AnErasedValueEndsEveryGroupThatHasIt) {
  std::vector<GlobalId> ids, others;
  for (int i = 0; i < 20; ++i) ids.push_back((*store_->Put(Value(i), false))->id);
  for (int i = 0; i < 20; ++i) others.push_back((*store_->Put(Value(i), false))->id);
  const std::vector<GlobalId> turned(ids.rbegin(), ids.rend());
  const EntryGroupPtr group = *store_->GetGroup(others);
  EXPECT_TRUE(store_->GetGroup(ids).ok());
  EXPECT_TRUE(store_->GetGroup(turned).ok());
  const Store::Erased erased = store_->Erase(ids[7]);
  EXPECT_TRUE(erased);
  EXPECT_EQ(erased.groups.size(), 2u);
  EXPECT_EQ(store_->GetGroup(ids).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->GetGroup(turned).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*store_->GetGroup(others), group);
}

TEST_F(StoreTest, AGroupOfParametersKnowsThem) {
  auto a = *Create("a", Full(1)), b = *Create("b", Full(2));
  auto number = *store_->Put(Value(3), false);
  EXPECT_EQ((*store_->GetGroup({b->id, a->id}))->parameters,
            (std::vector<Parameter*>{b->parameter.get(), a->parameter.get()}));
  EXPECT_TRUE((*store_->GetGroup({a->id, number->id}))->parameters.empty());
}

TEST_F(StoreTest, AnErasedValueIsFreedThoughItsGroupIsRemembered) {
  auto entry = *store_->Put(Full(1), false);
  const GlobalId id = entry->id;
  EXPECT_TRUE(store_->GetGroup(std::vector<GlobalId>(20, id)).ok());
  const std::weak_ptr<const Entry> watch = std::exchange(entry, nullptr);
  EXPECT_TRUE(store_->Erase(id));
  EXPECT_TRUE(watch.expired());
}

TEST_F(StoreTest, AValueWhoseNameWasGivenToAnotherCanBeErased) {
  auto first = *Create("w", 1);
  EXPECT_FALSE(store_->Erase(first->id));
  ASSERT_TRUE(store_->Drop(kChanging, "w").ok());
  auto second = *Create("w", 2);
  EXPECT_TRUE(store_->Erase(first->id));
  EXPECT_FALSE(store_->Erase(second->id));
}

TEST_F(StoreTest, ListsByPrefixInOrder) {
  for (const char* name : {"a/1", "a/2", "a/3", "b/1", "a0"}) ASSERT_TRUE(Create(name, 1).ok());
  const auto names = [](const std::vector<EntryPtr>& entries) {
    std::string joined;
    for (const auto& entry : entries) joined += entry->name + " ";
    return joined;
  };
  EXPECT_EQ(names(store_->List("a/")), "a/1 a/2 a/3 ");
  EXPECT_EQ(names(store_->List("a/", "a/1")), "a/2 a/3 ");
  EXPECT_EQ(names(store_->List("", "", 2)), "a/1 a/2 ");
  EXPECT_EQ(names(store_->List("a/", "b")), "");
  EXPECT_EQ(names(store_->List("c")), "");
}

TEST_F(StoreTest, ReadsSeveralAtOneMoment) {
  std::vector<EntryPtr> entries = {*Create("a", Full(1)), *Create("n", 7), *Create("b", Full(2))};
  auto values = *Entry::ReadAll(entries);
  ASSERT_EQ(values.size(), 3u);
  EXPECT_EQ(values[0].As<Variable>()->tensor().data<float>()[0], 1);
  EXPECT_EQ(*values[1].As<int64_t>(), 7);
  EXPECT_EQ(values[2].As<Variable>()->tensor().data<float>()[3], 2);
}

TEST_F(StoreTest, MemoryThatBecomesAValueIsCountedOnce) {
  const auto budget = MemoryBudget::Create(size_t{64} << 20);
  StoreOptions options;
  options.memory = budget->hosted();
  store_ = Store::Create(std::move(options), ids_);
  const Shape large = {1 << 20};
  const size_t bytes = size_t{4} << 20;
  Tensor result = *Tensor::Zeros(large, DType::kF32, budget->transit().get());
  EXPECT_EQ(budget->transit()->used_bytes(), bytes);
  auto held = store_->Put(Value(Variable(result)), false);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(budget->transit()->used_bytes(), 0u);
  EXPECT_EQ(budget->hosted()->used_bytes(), bytes + kEntryBytes);
  held = absl::UnavailableError("released");
  result = Tensor();
  store_.reset();
  EXPECT_EQ(budget->hosted()->used_bytes(), 0u);
}

TEST_F(StoreTest, WhatAnotherProcessLentIsCopiedIntoHostedMemory) {
  constexpr size_t kLarge = 2 * kMovableBytes;
  Reset({});
  const auto large = testing::LentBlock::Of(std::string(kLarge, 1));
  const auto small = testing::LentBlock::Of(std::string(8, 1));
  const Tensor a = *Tensor::FromBuffer({kLarge / 4}, DType::kF32, Buffer(large));
  const Tensor b = *Tensor::FromBuffer({2}, DType::kF32, Buffer(small));
  const SparseTensor sparse = *SparseTensor::Create({9}, Tensor::Of<int64_t>({1, 2}, {3, 4}), b);
  const Value value = Value::OfList(
      {a, 5, Value::OfMap({{"b", Variable(b, /*requires_grad=*/true)}, {"sparse", sparse}})});
  const EntryPtr entry = *Create("values", value);
  const size_t hosted = store_->stats().used_bytes;
  std::memset(large->data(), 2, kLarge);
  std::memset(small->data(), 2, 8);

  int tensors = 0;
  const auto own = [&tensors](const Tensor& tensor) {
    ++tensors;
    EXPECT_EQ(tensor.place().kind(), MemoryPlace::Kind::kHeap);
    if (IsFloating(tensor.dtype())) {
      EXPECT_EQ(tensor.raw_data()[0], std::byte{1});
    }
    return absl::OkStatus();
  };
  ASSERT_TRUE(entry->value.ForEachTensor(own).ok());
  EXPECT_EQ(tensors, 4);
  const Value::List& list = *entry->value.AsList();
  EXPECT_EQ(*list[1].As<int64_t>(), 5);
  EXPECT_TRUE(list[2].AsMap()->at(0).second.As<Variable>()->requires_grad());
  EXPECT_GE(hosted, kLarge);
  EXPECT_LT(hosted, 2 * kLarge);
}

TEST_F(StoreTest, MemoryThatIsHostedAlreadyIsNotChargedAgain) {
  const auto budget = MemoryBudget::Create(size_t{64} << 20);
  StoreOptions options;
  options.memory = budget->hosted();
  store_ = Store::Create(std::move(options), ids_);
  const size_t bytes = size_t{4} << 20;
  const Tensor result = *Tensor::Zeros({1 << 20}, DType::kF32, budget->transit().get());
  const auto first = store_->Put(Value(Variable(result)), false);
  const auto second = store_->Put(Value(Variable(result)), false);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(budget->hosted()->used_bytes(), bytes + 2 * kEntryBytes);
}

TEST_F(StoreTest, AValueThatDoesNotFitLeavesItsMemoryInTransit) {
  const auto budget = MemoryBudget::Create(size_t{64} << 20);
  StoreOptions options;
  options.memory = budget->hosted();
  store_ = Store::Create(std::move(options), ids_);
  const size_t bytes = size_t{4} << 20;
  const Tensor result = *Tensor::Zeros({1 << 20}, DType::kF32, budget->transit().get());
  const Tensor elsewhere = *Tensor::Zeros({1 << 20}, DType::kF32);
  const MemoryCharge values = *budget->hosted()->Charge(budget->hosted()->limit_bytes() - bytes);
  Value::List both = {Value(Variable(result)), Value(Variable(elsewhere))};
  EXPECT_EQ(store_->Put(Value::OfList(std::move(both)), false).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(budget->transit()->used_bytes(), bytes);
}

TEST_F(StoreTest, ASmallResultStaysChargedAsLongAsAnybodyHoldsIt) {
  const auto budget = MemoryBudget::Create(size_t{64} << 20);
  StoreOptions options;
  options.memory = budget->hosted();
  store_ = Store::Create(std::move(options), ids_);
  constexpr int kResults = 10;
  const size_t bytes = size_t{60} << 10;
  // A new thread moves all of its sums to the accounts when it ends.
  std::vector<Tensor> results;
  std::thread([&] {
    MemoryScope scope(budget->transit().get());
    for (int i = 0; i < kResults; ++i) {
      results.push_back(*Tensor::Zeros({15 << 10}, DType::kF32));
      EXPECT_TRUE(store_->Put(Value(Variable(results.back())), false).ok());
    }
  }).join();
  EXPECT_EQ(budget->transit()->used_bytes(), 0u);
  store_.reset();
  EXPECT_GE(budget->hosted()->used_bytes(), kResults * bytes);
  std::thread([&] { results.clear(); }).join();
  EXPECT_EQ(budget->hosted()->used_bytes(), 0u);
}

TEST_F(StoreTest, AStoreWithoutABudgetTakesASmallResultThatAnotherOneCharges) {
  const auto budget = MemoryBudget::Create(size_t{64} << 20);
  MemoryScope scope(budget->transit().get());
  const Tensor result = *Tensor::Zeros({16}, DType::kF32);
  ASSERT_NE(result.SmallChargeBytes(), 0u);
  StoreOptions options;
  options.memory = MemoryBudget::Create(0)->hosted();
  store_ = Store::Create(std::move(options), ids_);
  EXPECT_TRUE(store_->Put(Value(Variable(result)), false).ok());
  EXPECT_NE(result.SmallChargeBytes(), 0u);
}

TEST_F(StoreTest, AViewLeavesTheChargeOfTheSmallPieceBelowIt) {
  const auto budget = MemoryBudget::Create(size_t{64} << 20);
  StoreOptions options;
  options.memory = budget->hosted();
  store_ = Store::Create(std::move(options), ids_);
  const size_t bytes = size_t{60} << 10;
  Tensor view;
  std::thread([&] {
    MemoryScope scope(budget->transit().get());
    view = Tensor::Zeros({15 << 10}, DType::kF32)->View({1}, {1}, 0);
  }).join();
  const auto held = store_->Put(Value(Variable(view)), false);
  ASSERT_TRUE(held.ok());
  EXPECT_GE(budget->transit()->used_bytes(), bytes);
}

TEST_F(StoreTest, ManyTinyValuesAreBoundedByTheBudget) {
  Reset({}, size_t{64} << 10);
  absl::StatusOr<EntryPtr> made = store_->Put(Value(1), false);
  size_t values = 0;
  for (; made.ok(); ++values) made = store_->Put(Value(1), false);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(values, (size_t{64} << 10) / kEntryBytes);
  EXPECT_EQ(store_->stats().anonymous, values);
}

TEST_F(StoreTest, Stats) {
  Reset({}, 2000);
  ASSERT_TRUE(Create("a", Full(1)).ok());
  ASSERT_TRUE(store_->Put(std::shared_ptr<Object>(std::make_shared<Thing>()), false).ok());
  auto stats = store_->stats();
  EXPECT_EQ(stats.named, 1u);
  EXPECT_EQ(stats.anonymous, 1u);
  EXPECT_EQ(stats.used_bytes, 2 * kEntryBytes + 17);
  EXPECT_EQ(stats.limit_bytes, 2000u);
}

}  // namespace
}  // namespace psd::store
