// Parameters that are spread over owners by their bytes, some of them cut by rows.

#include "client/place.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/psd.h"
#include "core/base/log.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/daemon/config.h"
#include "server/daemon/server.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ParameterSpec Spec(const std::string& name, const Shape& shape, bool requires_grad = true) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = shape;
  spec.requires_grad = requires_grad;
  spec.create = [](const Shape& rows, int64_t first_row) {
    return Uniform(rows, -1, 1, /*seed=*/static_cast<uint64_t>(first_row) + 7);
  };
  return spec;
}

PlaceOptions With(const OptimizerSpec& optimizer, bool cut_huge = true) {
  PlaceOptions options;
  options.optimizer = optimizer;
  options.cut_huge = cut_huge;
  return options;
}

class PlaceTest : public ::testing::Test {
 protected:
  std::unique_ptr<Worker> Start(const std::string& name) {
    return StartTrainer(name, {a_.address(), b_.address()});
  }
  std::map<std::string, size_t> BytesOn(const std::string& owner) {
    std::map<std::string, size_t> bytes;
    for (const ValueInfo& value : Must(worker_->List(owner))) bytes[value.name] = value.bytes;
    return bytes;
  }

  TestOwner a_{"a"}, b_{"b"};
  std::unique_ptr<Worker> worker_ = Start("trainer0");
};

TEST_F(PlaceTest, TheLargestGoFirstAndOwnersHaveTheSameBytes) {
  const PlacedModel model =
      Must(Place(*worker_, {Spec("w0", {50}), Spec("w1", {90}), Spec("w2", {40}), Spec("w3", {80})},
                 {"b", "a"}, With(Adam{})));
  const auto owners = [&](const PlacedModel& placed) {
    std::vector<std::string> names;
    for (const PlacedParameter& parameter : placed.parameters()) {
      EXPECT_EQ(parameter.parts.size(), 1u);
      names.push_back(parameter.parts[0].owner);
    }
    return names;
  };
  EXPECT_THAT(owners(model), ElementsAre("b", "a", "a", "b")) << "90 + 40 and 80 + 50";
  EXPECT_EQ(BytesOn("a").size(), 2u);
  EXPECT_EQ(BytesOn("b").size(), 2u);
  EXPECT_EQ(BytesOn("a").count("w1"), 1u);
}

TEST_F(PlaceTest, WhatAnOwnerTakesCounts) {
  // With Adam's state and the second version, 40 elements that are stepped weigh more than 100
  // frozen ones.
  const PlacedModel model = Must(
      Place(*worker_, {Spec("frozen", {100}, false), Spec("stepped", {40}), Spec("small", {20})},
            {}, With(Adam{}, /*cut_huge=*/false)));
  EXPECT_EQ(model.parameters()[1].parts[0].owner, "a");
  EXPECT_EQ(model.parameters()[0].parts[0].owner, "b");
  EXPECT_EQ(model.parameters()[2].parts[0].owner, "b");
  EXPECT_EQ(model.parts().size(), 2u) << "the optimizer gets what requires grad";
}

TEST_F(PlaceTest, AHugeParameterIsCutAndFetchedAsOne) {
  const PlacedModel model = Must(
      Place(*worker_, {Spec("bias", {4}), Spec("table", {1000, 4})}, {"a", "b"}, With(Adam{})));
  const std::vector<PlacedPart>& parts = model.parameters()[1].parts;
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].first_row, 0);
  EXPECT_EQ(parts[0].rows, 500);
  EXPECT_EQ(parts[1].first_row, 500);
  EXPECT_NE(parts[0].owner, parts[1].owner);
  EXPECT_EQ(BytesOn(parts[1].owner).count("table[500:1000]"), 1u);

  std::vector<float> elements(4000);
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(i);
  ASSERT_TRUE(model.Assign(1, Tensor::Of<float>({1000, 4}, elements)).ok());
  const std::vector<Variable> constants = Must(model.ToHere());
  ASSERT_EQ(constants.size(), 2u);
  EXPECT_EQ(constants[0].tensor().shape(), Shape({4}));
  EXPECT_EQ(constants[1].tensor().shape(), Shape({1000, 4}));
  EXPECT_EQ(Elements(constants[1].tensor()), elements);
}

// Trains w [6, 2] to w * x = y and returns its elements.
std::vector<float> Train(Worker& worker, const std::string& prefix,
                         const std::vector<std::string>& owners, size_t expected_parts) {
  const Tensor start = Tensor::Of<float>({6, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  const PlacedModel model = Must(
      Place(worker, {Spec(prefix + "w", {6, 2}), Spec(prefix + "b", {6})}, owners, With(Adam{})));
  EXPECT_EQ(model.parts().size(), expected_parts);
  EXPECT_TRUE(model.Assign(0, start).ok());
  EXPECT_TRUE(model.Assign(1, Tensor::Of<float>({6}, {0, 1, 2, 3, 4, 5})).ok());
  const auto optimizer =
      Must(DistributedOptimizer::Create(worker, prefix + "adam", Adam{}, model.parts()));
  const Tensor x = Tensor::Of<float>({3, 2}, {0.5F, -1, 2, 0.25F, -0.75F, 1});
  for (int step = 0; step < 5; ++step) {
    Context context = Must(worker.NewContext());
    const std::vector<Variable> parameters = Must(model.ToHere(context));
    const Variable loss =
        Mse(Linear(x, parameters[0], parameters[1]),
            Tensor::Of<float>({3, 6}, {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}));
    EXPECT_TRUE(context.Backward({loss}).ok());
    const absl::Status stepped = optimizer->Step(context);
    EXPECT_TRUE(stepped.ok()) << stepped;
  }
  return Elements(Must(model.ToHere())[0].tensor());
}

TEST_F(PlaceTest, ACutParameterIsSteppedAsOne) {
  const std::vector<float> whole = Train(*worker_, "whole/", {"a"}, 2);
  const std::vector<float> cut = Train(*worker_, "cut/", {"a", "b"}, 3);
  EXPECT_EQ(whole, cut) << "bit for bit";
  EXPECT_NE(whole[0], 1) << "it was stepped";
}

ParameterSpec TableSpec(const std::string& name, const Shape& shape) {
  ParameterSpec spec = Spec(name, shape);
  spec.rows = true;
  return spec;
}

Tensor Ids(const Shape& shape, const std::vector<int64_t>& ids) {
  return Tensor::Of<int64_t>(shape, ids);
}

// Makes a table of 8 rows and width 2 over the owners; its row i is (i, 10 i).
PlacedModel MakeTable(Worker& worker, const std::string& name,
                      const std::vector<std::string>& owners) {
  PlaceOptions options;
  options.table_optimizer = Adagrad{};
  PlacedModel model = Must(Place(worker, {TableSpec(name, {8, 2})}, owners, options));
  std::vector<float> rows;
  for (int i = 0; i < 8; ++i) rows.insert(rows.end(), {1.0F * i, 10.0F * i});
  EXPECT_TRUE(model.Assign(0, Tensor::Of<float>({8, 2}, rows)).ok());
  return model;
}

TEST_F(PlaceTest, RowsOfACutTableAreLookedUpByTheIdsOfTheWhole) {
  const PlacedModel model = MakeTable(*worker_, "table", {"a", "b"});
  ASSERT_EQ(model.tables().size(), 2u);
  EXPECT_TRUE(model.parts().empty()) << "tables have an optimizer of rows";
  EXPECT_TRUE(Must(model.ToHere()).empty()) << "nothing moves a whole table";
  const std::vector<Variable> rows = Must(model.LookUpRows({{0, Ids({2, 2}, {7, 0, 3, 7})},
                                                            {0, Ids({2}, {1, 0})},
                                                            {0, Ids({1}, {5})},
                                                            {0, Ids({0}, {})}}));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].tensor().shape(), Shape({2, 2, 2}));
  EXPECT_THAT(Elements(rows[0].tensor()), ElementsAre(7, 70, 0, 0, 3, 30, 7, 70));
  EXPECT_THAT(Elements(rows[1].tensor()), ElementsAre(1, 10, 0, 0)) << "of one part only";
  EXPECT_THAT(Elements(rows[2].tensor()), ElementsAre(5, 50));
  EXPECT_EQ(rows[3].tensor().shape(), Shape({0, 2}));
  for (int64_t bad : {int64_t{-1}, int64_t{8}}) {
    const absl::Status refused = model.LookUpRows({{0, Ids({2}, {1, bad})}}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("row " + std::to_string(bad) + " of table, which has 8 rows"));
  }
  EXPECT_EQ(model.LookUpRows({{1, Ids({1}, {0})}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(model.LookUpRows({{0, Tensor::Of<float>({1}, {0})}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Steps a table with repeated ids and returns all its rows.
std::vector<float> TrainTable(Worker& worker, const std::string& name,
                              const std::vector<std::string>& owners) {
  const PlacedModel model = MakeTable(worker, name, owners);
  const auto optimizer =
      Must(DistributedOptimizer::Create(worker, name + "/adagrad", Adagrad{}, model.tables()));
  for (int step = 0; step < 3; ++step) {
    Context context = Must(worker.NewContext());
    const auto rows = Must(model.LookUpRows({{0, Ids({5}, {6, 1, 6, 2, 1})}}, context));
    const Variable loss = Mse(rows[0], Tensor::Of<float>({5, 2}, std::vector<float>(10, 0.3F)));
    EXPECT_TRUE(context.Backward({loss}).ok());
    const absl::Status stepped = optimizer->Step(context);
    EXPECT_TRUE(stepped.ok()) << stepped;
  }
  return Elements(Must(model.LookUpRows({{0, Ids({8}, {0, 1, 2, 3, 4, 5, 6, 7})}}))[0].tensor());
}

TEST_F(PlaceTest, ACutTableIsSteppedAsOne) {
  const std::vector<float> whole = TrainTable(*worker_, "whole", {"a"});
  EXPECT_EQ(TrainTable(*worker_, "cut", {"a", "b"}), whole) << "bit for bit";
  EXPECT_NE(whole[2], 1) << "row 1 was stepped";
  EXPECT_EQ(whole[6], 3) << "row 3 was not";
}

TEST_F(PlaceTest, TrainersThatSayTheSameShareTheValues) {
  const std::vector<ParameterSpec> specs = {Spec("bias", {4}), Spec("table", {100, 4})};
  const PlacedModel mine = Must(Place(*worker_, specs, {"a", "b"}));
  const auto other = Start("trainer1");
  const PlacedModel theirs = Must(Place(*other, specs, {"b", "a"}));
  ASSERT_TRUE(mine.Assign(1, Tensor::Of<float>({100, 4}, std::vector<float>(400, 3.0F))).ok());
  EXPECT_EQ(Elements(Must(theirs.ToHere())[1].tensor()), std::vector<float>(400, 3.0F));
}

TEST_F(PlaceTest, ManySmallParametersAndOddShapes) {
  std::vector<ParameterSpec> specs = {Spec("scalar", {}), Spec("empty", {0, 3})};
  for (int i = 0; i < 1200; ++i) specs.push_back(Spec("small" + std::to_string(i), {3}));
  const PlacedModel model = Must(Place(*worker_, specs, {"a", "b"}, With(Adam{})));
  EXPECT_EQ(BytesOn("a").size() + BytesOn("b").size(), specs.size());
  const std::vector<Variable> values = Must(model.ToHere());
  ASSERT_EQ(values.size(), specs.size());
  EXPECT_EQ(values[0].tensor().shape(), Shape({}));
  EXPECT_EQ(values[1].tensor().shape(), Shape({0, 3}));
}

TEST_F(PlaceTest, WhatMakesNoSenseIsRefused) {
  const auto refused = [&](std::vector<ParameterSpec> specs, std::vector<std::string> owners,
                           const PlaceOptions& options, absl::StatusCode code) {
    const absl::Status status =
        Place(*worker_, std::move(specs), std::move(owners), options).status();
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(refused({Spec("w", {2}), Spec("w", {2})}, {"a"}, {}, kInvalid), HasSubstr("'w'"));
  EXPECT_THAT(refused({Spec("w", {2})}, {"a", "b", "a"}, {}, kInvalid), HasSubstr("owner a"));
  ParameterSpec without = Spec("w", {2});
  without.create = nullptr;
  EXPECT_THAT(refused({without}, {"a"}, {}, kInvalid), HasSubstr("ParameterSpec::create"));
  EXPECT_THAT(refused({Spec("w", {2})}, {"nobody"}, {}, absl::StatusCode::kNotFound),
              HasSubstr("nobody"));
  EXPECT_THAT(refused({Spec("w", {2})}, {"a"}, With({"adamm", {}}), absl::StatusCode::kNotFound),
              HasSubstr("adam"));
  EXPECT_THAT(refused({TableSpec("flat", {2})}, {"a"}, {}, kInvalid), HasSubstr("'flat'"));
  PlaceOptions dense_only;
  dense_only.table_optimizer = Adam{};
  EXPECT_THAT(refused({TableSpec("table", {2, 2})}, {"a"}, dense_only, kInvalid),
              HasSubstr("'table' cannot be stepped by adam"));
  ParameterSpec wrong = Spec("wrong", {8, 2});
  wrong.create = [](const Shape&, int64_t) { return Zeros({8, 2}); };
  const PlacedModel model = Must(Place(*worker_, {wrong}, {"a", "b"}));
  const absl::Status fetched = model.ToHere().status();
  EXPECT_EQ(fetched.code(), absl::StatusCode::kFailedPrecondition) << fetched;
  EXPECT_THAT(std::string(fetched.message()), HasSubstr("wrong[0:4] on a has the shape [8, 2]"));
  EXPECT_EQ(model.Assign(0, Tensor::Of<float>({2}, {1, 2})).code(), kInvalid);
  EXPECT_EQ(model.Assign(1, Tensor::Of<float>({2}, {1, 2})).code(), kInvalid);
}

// If no owners are named, those that the registrar knows are used.
TEST(PlaceOnJob, TheOwnersOfTheJobAreTaken) {
  server::DaemonConfig config;
  config.name = "registrar";
  config.listen = "127.0.0.1:0";
  config.registrar_only = true;
  auto registrar = Must(server::Server::Create(config, {}, NewNullLogger()));
  const std::string address = Must(registrar->Start());
  const auto start_trainer = [&](const std::string& name) {
    return StartTrainer(name, {{"registrar", address}});
  };
  const auto worker = start_trainer("trainer0");
  const absl::Status nobody = Place(*worker, {Spec("w", {2})}).status();
  EXPECT_EQ(nobody.code(), absl::StatusCode::kFailedPrecondition) << nobody;
  EXPECT_THAT(std::string(nobody.message()), HasSubstr("no owner"));

  server::DaemonConfig owner;
  owner.name = "owner0";
  owner.listen = "127.0.0.1:0";
  owner.registrar_name = "registrar";
  owner.registrar_address = address;
  auto daemon = Must(server::Server::Create(owner, {}, NewNullLogger()));
  Must(daemon->Start());
  while (Must(worker->JobOwners()).empty()) std::this_thread::yield();
  const PlacedModel model = Must(Place(*worker, {Spec("w", {2})}));
  EXPECT_EQ(model.parameters()[0].parts[0].owner, "owner0");
  EXPECT_EQ(Must(model.ToHere()).size(), 1u);
}

}  // namespace
}  // namespace psd
