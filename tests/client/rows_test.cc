// Embedding tables through the public interface: creation, lookups, sparse gradients.

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/memory_budget.h"
#include "core/dist_autograd/exchange.h"
#include "core/rpc/message_io.h"
#include "core/runtime/runtime.h"
#include "core/store/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/worker.pb.h"
#include "tests/client/rows_world.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(RowsTest, ALookupTakesTheShapeOfItsIds) {
  RRef table = Must(trainer_->GetOrCreate("owner0", "emb", Normal({10, 3}, 0, 1, 7), AsRows()));
  const Tensor ids = Tensor::Of<int64_t>({2, 2}, {9, 0, 9, 4});
  auto rows = Must(trainer_->LookUpRows({{table, ids}}));
  EXPECT_EQ(rows[0].shape(), (Shape{2, 2, 3}));
  EXPECT_FALSE(rows[0].requires_grad());
  const std::vector<float> all = Elements(rows[0].tensor());
  EXPECT_EQ(std::vector<float>(all.begin(), all.begin() + 3),
            std::vector<float>(all.begin() + 6, all.begin() + 9));
}

TEST_F(RowsTest, QueriesOfSeveralOwnersComeInTheirOrder) {
  RRef a = Table(4, 2, "a", "owner1");
  RRef b = Must(trainer_->GetOrCreate("owner0", "b", Full({3, 1}, 5), AsRows()));
  auto rows = Must(trainer_->LookUpRows({{a, Ids({0})}, {b, Ids({1, 2})}, {a, Ids({3})}}));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_THAT(Elements(rows[0].tensor()), ElementsAre(1, 1));
  EXPECT_THAT(Elements(rows[1].tensor()), ElementsAre(5, 5));
  EXPECT_THAT(Elements(rows[2].tensor()), ElementsAre(1, 1));
}

TEST_F(RowsTest, NoIdsGiveNoRows) {
  RRef table = Table(4, 2);
  Context context = Must(trainer_->NewContext());
  auto rows = Must(trainer_->LookUpRows({{table, Ids({})}}, context));
  EXPECT_EQ(rows[0].shape(), (Shape{0, 2}));
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Sgd{}, {table}));
  ASSERT_TRUE(context.Backward({Sum(rows[0])}).ok());
  EXPECT_TRUE(optimizer->Step(context).ok());
  EXPECT_THAT(Rows(table, {0, 1, 2, 3}), Each(1));
}

TEST_F(RowsTest, DAG_54_GradientsOfRowsAreSparseAndAddUp) {
  RRef table = Table(5, 2);
  Context context = Must(trainer_->NewContext());
  auto rows = Must(trainer_->LookUpRows({{table, Ids({3, 1, 3})}, {table, Ids({1})}}, context));
  ASSERT_TRUE(context.Backward({Sum(rows[0] * 2.0) + Sum(rows[1])}).ok());
  SparseTensor gradient = Must(context.SparseGradient(table));
  EXPECT_EQ(gradient.shape(), (Shape{5, 2}));
  EXPECT_EQ(gradient.NumEntries(), 4);
  SparseTensor summed = Must(gradient.Coalesced());
  EXPECT_THAT(Elements<int64_t>(summed.indices()), ElementsAre(1, 3));
  EXPECT_THAT(Elements(summed.values()), ElementsAre(3, 3, 4, 4));
  EXPECT_THAT(std::string(context.Gradient(table).status().message()), HasSubstr("SparseGradient"));
}

// Returns `count` ids in [0, rows) in a mixed order, in which all rows occur equally often.
Tensor ManyIds(int64_t count, int64_t rows) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) ids[static_cast<size_t>(i)] = i * 7 % rows;
  return Tensor::Of<int64_t>({2, count / 2}, ids);
}

TEST_F(RowsTest, ALargeLookupCarriesEveryRowOnceAndGivesThemAsAsked) {
  RRef table = Must(trainer_->GetOrCreate("owner0", "emb", Normal({60, 3}, 0, 1, 7), AsRows()));
  const Tensor ids = ManyIds(600, 60);
  Context context = Must(trainer_->NewContext());
  auto rows = Must(trainer_->LookUpRows({{table, ids}}, context));
  EXPECT_EQ(rows[0].shape(), (Shape{2, 300, 3}));
  const std::vector<int64_t> id = Elements<int64_t>(ids);
  const std::vector<float> all = Elements(rows[0].tensor());
  for (const size_t i : {0, 1, 59, 60, 311, 599})
    EXPECT_EQ(std::vector<float>(all.begin() + 3 * i, all.begin() + 3 * i + 3),
              Rows(table, {id[i]}));
  ASSERT_TRUE(context.Backward({Sum(rows[0] * 2.0)}).ok());
  SparseTensor gradient = Must(context.SparseGradient(table));
  EXPECT_EQ(gradient.NumEntries(), 60);
  EXPECT_THAT(Elements(gradient.values()), Each(20));
}

TEST_F(RowsTest, ALargeLookupAndASmallOneAddUp) {
  RRef table = Table(50, 2);
  Context context = Must(trainer_->NewContext());
  auto rows = Must(trainer_->LookUpRows({{table, ManyIds(500, 50)}, {table, Ids({4})}}, context));
  ASSERT_TRUE(context.Backward({Sum(rows[0]) + Sum(rows[1])}).ok());
  const std::vector<float> dense = Elements(Must(Must(context.SparseGradient(table)).ToDense()));
  EXPECT_EQ(dense[7], 10);
  EXPECT_EQ(dense[8], 11);
}

TEST_F(RowsTest, TheErrorOfALargeLookupNamesTheIdByItsPlace) {
  RRef table = Table(50, 2);
  std::vector<int64_t> ids(400, 3);
  ids[317] = 50;
  const Tensor wrong = Tensor::Of<int64_t>({400}, ids);
  const absl::Status refused = trainer_->LookUpRows({{table, wrong}}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("id 50 (number 317 of 400)"));
}

TEST_F(RowsTest, DAG_28_BackwardTwiceAccumulatesSparseGradients) {
  RRef table = Table(5, 1);
  Context context = Must(trainer_->NewContext());
  auto rows = Must(trainer_->LookUpRows({{table, Ids({2})}}, context));
  dist_autograd::BackwardOptions retain;
  retain.retain_graph = true;
  Variable loss = Sum(rows[0] * rows[0]);
  ASSERT_TRUE(context.Backward({loss}, retain).ok());
  ASSERT_TRUE(context.Backward({loss}).ok());
  Tensor dense = Must(Must(context.SparseGradient(table)).ToDense());
  EXPECT_THAT(Elements(dense), ElementsAre(0, 0, 4, 0, 0));
}

TEST_F(DenseTableTest, DAG_54_SparseThenDenseAndDenseThenSparseAreDenseAndLoseNothing) {
  RRef table = Dense(3, 1);
  for (bool sparse_first : {true, false}) {
    Context context = Must(trainer_->NewContext());
    auto whole = Must(trainer_->ToHere({table}, context));
    auto rows = Must(trainer_->LookUpRows({{table, Ids({1, 1})}}, context));
    const Variable sparse = Sum(rows[0] * 2.0), dense = Sum(whole[0]);
    ASSERT_TRUE(context.Backward({sparse_first ? sparse : dense}).ok());
    ASSERT_TRUE(context.Backward({sparse_first ? dense : sparse}).ok());
    EXPECT_THAT(Elements(Must(context.Gradient(table))), ElementsAre(1, 5, 1));
    EXPECT_FALSE(context.SparseGradient(table).ok());
  }
}

TEST_F(DenseTableTest, OnlyMatricesHaveRows) {
  RRef vector = MakeParameter(*trainer_, "owner0", "v", Tensor::Of<float>({2}, {1, 2}));
  EXPECT_EQ(trainer_->LookUpRows({{vector, Ids({0})}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(RowsTest, ATableTakesNewElements) {
  const RRef table = Table(3000, 2);  // more rows than are written at once
  Tensor elements = Must(Tensor::Zeros({3000, 2}, DType::kF32));
  for (int64_t i = 0; i < 6000; ++i) elements.mutable_data<float>()[i] = static_cast<float>(i);
  EXPECT_EQ(Must(trainer_->Assign(table, elements)), 2u);
  EXPECT_THAT(Rows(table, {0, 1023, 1024, 2999}),
              ElementsAre(0, 1, 2046, 2047, 2048, 2049, 5998, 5999));
  for (const Tensor& wrong :
       {Must(Tensor::Zeros({2, 2}, DType::kF32)), Must(Tensor::Zeros({3000, 2}, DType::kF64))}) {
    const absl::Status refused = trainer_->Assign(table, wrong).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("emb"), HasSubstr("rows f32[3000, 2]")));
  }
  EXPECT_THAT(Rows(table, {0}), ElementsAre(0, 1));
}

TEST_F(RowsTest, BadIdsAreNamed) {
  RRef table = Table(4, 2);
  for (int64_t id : {int64_t{-1}, int64_t{4}, INT64_MAX, INT64_MIN}) {
    absl::Status refused = trainer_->LookUpRows({{table, Ids({0, id})}}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("'emb'"), HasSubstr(absl::StrCat("id ", id)), HasSubstr("4 rows")));
  }
  EXPECT_EQ(trainer_->LookUpRows({{table, Tensor::Of<float>({1}, {0})}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(trainer_->LookUpRows({{table, Tensor()}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(trainer_->LookUpRows({{RRef(), Ids({0})}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(RowsTest, HostileLookupsAreRefused) {
  RRef table = Table(4, 2);
  worker::Runtime& runtime = RuntimeOf(*trainer_);
  const auto ask = [&](const std::vector<GlobalId>& tables, const Values& ids) {
    auto request =
        Must(dist_autograd::Exchange(runtime.agent().self(), runtime.rrefs(), runtime.autograd())
                 .EncodeRequest("rows.lookup", "owner0", ids, nullptr));
    v1::FetchRequest fields;
    for (GlobalId id : tables) {
      fields.add_incarnations(id.incarnation);
      fields.add_counters(id.counter);
    }
    request.attachments.push_back(rpc::FieldsAttachment(fields));
    return runtime.agent().StartCall("owner0", std::move(request), {}).reply().Wait().status();
  };
  const GlobalId id = table.value_id();
  EXPECT_TRUE(ask({id}, {Ids({1})}).ok());
  EXPECT_EQ(ask({id, id}, {Ids({1})}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ask({}, {Ids({1})}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ask({id}, {Value(1)}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ask({{id.incarnation, 999}}, {Ids({1})}).code(), absl::StatusCode::kNotFound);
  // More rows than a result may hold are refused before memory is allocated for them.
  RRef wide = Must(trainer_->GetOrCreate("owner0", "wide", Zeros({1, 1 << 20}), AsRows()));
  EXPECT_EQ(ask({wide.value_id()}, {Value(*Tensor::Zeros({2048}, DType::kI64))}).code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(RowsTest, CreatorsOfOneTableMustAgree) {
  Table(4, 2);
  const auto create = [&](const Shape& shape, CreateOptions options) {
    return trainer_->GetOrCreate("owner0", "emb", Full(shape, 1), options).status().code();
  };
  EXPECT_EQ(create({4, 2}, AsRows()), absl::StatusCode::kOk);
  EXPECT_EQ(create({4, 3}, AsRows()), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(create({4, 2}, AsRows(false)), absl::StatusCode::kFailedPrecondition);
  CreateOptions dense;
  dense.requires_grad = true;
  EXPECT_EQ(create({4, 2}, dense), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RowsTest, OnlyTablesBecomeRows) {
  for (const Program& program : {Zeros({4}), Zeros({0, 4}), Zeros({4, 4}, DType::kI64)}) {
    EXPECT_EQ(trainer_->GetOrCreate("owner0", "bad", program, AsRows()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(RowsTest, ListingsShowTables) {
  Table(4, 2);
  auto listed = Must(trainer_->List("owner0"));
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].kind, "rows f32[4, 2]");
  EXPECT_EQ(listed[0].bytes, 32u);
  EXPECT_EQ(listed[0].version, 1u);
}

TEST_F(RowsTest, MemoryIsChargedAndGivenBack) {
  worker::RuntimeOptions options;
  options.memory = MemoryBudget::Create(2 << 20);
  TestOwner small("small", options);
  auto trainer = StartTrainer("trainer1", {small.address()});
  EXPECT_EQ(
      trainer->GetOrCreate("small", "big", Zeros({1 << 10, 1 << 10}), AsRows()).status().code(),
      absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(trainer->GetOrCreate("small", "fits", Zeros({1 << 7, 1 << 10}), AsRows()).ok());
  EXPECT_EQ(small.runtime().store().stats().used_bytes, (size_t{1} << 19) + store::kEntryBytes + 4);
  ASSERT_TRUE(trainer->Drop("small", "fits").ok());
  while (small.runtime().store().stats().used_bytes > 0) std::this_thread::yield();
}

}  // namespace
}  // namespace psd
