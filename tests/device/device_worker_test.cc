// An owner that hosts parameters on a device, and a trainer that uses them like any others. The
// tests run with several seeds, which decide in which order an emulated device works.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/checkpoint.h"
#include "client/psd.h"
#include "core/base/status.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/checkpoint/fake_file_system.h"
#include "tests/core/checkpoint/fake_root.h"
#include "tests/device/device_under_test.h"
#include "tests/device/owner_under_test.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

class DeviceWorkerTest : public testing::OnDevice<::testing::TestWithParam<uint64_t>> {
 protected:
  static CreateOptions On(const std::string& device) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = device;
    return options;
  }
  absl::StatusOr<RRef> Make(const std::string& name, const std::string& device,
                            const Shape& shape = {4}) {
    return trainer_->GetOrCreate("owner", name, Full(shape, 2), On(device));
  }
  RRef There(const std::string& name, const Shape& shape = {4}) {
    return Must(Make(name, device_, shape));
  }
  // Makes a step for the loss sum(w * w * c) of every parameter.
  absl::Status Step(DistributedOptimizer& optimizer, const std::vector<RRef>& parameters, double c,
                    const StepOptions& options = {}) {
    Context context = Must(trainer_->NewContext());
    std::vector<Variable> roots;
    for (const Variable& w : Must(trainer_->ToHere(parameters, context)))
      roots.push_back(Sum(w * w * c));
    PSD_RETURN_IF_ERROR(context.Backward(roots));
    return optimizer.Step(context, options);
  }
  // Returns the elements of a parameter with seven rows, or of such a table.
  std::vector<float> SevenRows(const RRef& value, bool rows) {
    if (!rows) return Read(*trainer_, value);
    const Tensor ids = Tensor::Of<int64_t>({7}, {0, 1, 2, 3, 4, 5, 6});
    return Elements(Must(trainer_->LookUpRows({{value, ids}}))[0].tensor());
  }
  void ExpectSame(const RRef& a, const RRef& b, const std::string& label) {
    EXPECT_THAT(Read(*trainer_, a), Pointwise(FloatNear(1e-5f), Read(*trainer_, b))) << label;
  }

  const std::string device_ = testing::NameOfDevice();
  OwnerUnderTest host_{"owner", {}, GetParam()};
  std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {host_.owner().address()});
};

INSTANTIATE_TEST_SUITE_P(Orders, DeviceWorkerTest, ::testing::Values(0, 1));

TEST_P(DeviceWorkerTest, CreateFetchAssignAndDrop) {
  RRef w = There("w");
  EXPECT_GT(host_.device().used_bytes(), 0u);
  EXPECT_THAT(Read(*trainer_, w), ElementsAre(2, 2, 2, 2));
  EXPECT_EQ(*trainer_->Assign(w, Tensor::Of<float>({4}, {1, 2, 3, 4})), 2u);
  const auto pulled = Must(trainer_->Pull({w}));
  EXPECT_EQ(pulled[0].version, 2u);
  EXPECT_THAT(Elements(pulled[0].elements), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Must(trainer_->List("owner"))[0].kind, HasSubstr("on " + device_));
  ASSERT_TRUE(trainer_->Drop("owner", "w").ok());
}

TEST_P(DeviceWorkerTest, ValuesOfBothPlacesComeTogether) {
  const RRef w = There("w"), b = Must(Make("b", "cpu"));
  Must(trainer_->Assign(b, Tensor::Of<float>({4}, {5, 6, 7, 8})));
  const auto pulled = Must(trainer_->Pull({b, w}));
  EXPECT_THAT(Elements(pulled[0].elements), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(Elements(pulled[1].elements), ElementsAre(2, 2, 2, 2));
}

TEST_P(DeviceWorkerTest, StepsOfItsOptimizersEqualThoseOfTheCpu) {
  OptimizerSpec decayed{"sgd", {{"lr", 0.1}, {"weight_decay", 0.1}}};
  int number = 0;
  for (const OptimizerSpec& spec : {OptimizerSpec(Sgd{0.1}), decayed, OptimizerSpec(Adam{0.1})}) {
    const std::string label = absl::StrCat(spec.type, ++number);
    const RRef there = There(label), there2 = There("2" + label, {3, 5});
    const RRef here = Must(Make("cpu" + label, "cpu")),
               here2 = Must(Make("c2" + label, "", {3, 5}));
    const testing::NewKernels kernels(host_.device());
    auto on_device = Must(DistributedOptimizer::Create(*trainer_, spec, {there, there2}));
    auto on_cpu = Must(DistributedOptimizer::Create(*trainer_, spec, {here, here2}));
    StepOptions clipped;
    clipped.clip_value = 0.5;
    StepOptions by_norm;
    by_norm.clip_norm = 0.25;
    for (const StepOptions& options : {StepOptions{}, clipped, by_norm}) {
      ASSERT_TRUE(Step(*on_device, {there, there2}, 0.5, options).ok());
      ASSERT_TRUE(Step(*on_cpu, {here, here2}, 0.5, options).ok());
    }
    kernels.ExpectSome();
    ExpectSame(there, here, label);
    ExpectSame(there2, here2, label);
  }
}

TEST_P(DeviceWorkerTest, OneOptimizerStepsParametersOfBothPlaces) {
  const RRef w = There("w"), b = Must(Make("b", "cpu"));
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Adam{0.1}, {w, b}));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Step(*optimizer, {w, b}, 1).ok());
  ExpectSame(w, b, "adam");
}

TEST_P(DeviceWorkerTest, ProgramsRunWhereTheirValuesAre) {
  const RRef w = There("w", {2, 3});
  ProgramBuilder builder;
  const auto in = builder.Input();
  const auto doubled = builder.Call("mul_scalar", {in}, {{"value", 3.0}});
  const auto sum = builder.Call("sum", {builder.Call("relu", {builder.Call("add", {doubled, in})})},
                                {{"axis", int64_t{1}}});
  const Function program = Must(builder.Build({sum}));
  const std::optional<size_t> before = testing::KernelsGiven(host_.device());
  const Values results = Must(trainer_->RpcSync("owner", program, {w}));
  if (before.has_value()) {
    EXPECT_EQ(*testing::KernelsGiven(host_.device()), *before + 4);
  }
  EXPECT_THAT(Elements(results[0].As<Variable>()->tensor()), ElementsAre(24, 24));
}

TEST_P(DeviceWorkerTest, WhatAProgramCreatesIsWhereItsArgumentsAre) {
  const RRef w = There("w", {2, 3}), b = Must(Make("b", "cpu", {2, 3}));
  ProgramBuilder builder;
  const auto in = builder.Input();
  const Attributes shape = {{"shape", std::vector<int64_t>{2, 3}}};
  Attributes uniform = shape, normal = shape, full = shape;
  uniform.insert({{"low", -1.0}, {"high", 1.0}, {"seed", int64_t{7}}});
  normal.insert({{"mean", 0.5}, {"deviation", 2.0}, {"seed", int64_t{8}}});
  full.insert({"value", 0.25});
  const auto noise = builder.Call(
      "add", {builder.Call("uniform", {}, uniform), builder.Call("normal", {}, normal)});
  const auto sum =
      builder.Call("add", {builder.Call("zeros", {}, shape), builder.Call("full", {}, full)});
  const Function program =
      Must(builder.Build({builder.Call("add", {builder.Call("mul", {in, noise}), sum})}));
  const Values here = Must(trainer_->RpcSync("owner", program, {b}));
  const Values there = Must(trainer_->RpcSync("owner", program, {w}));
  const std::vector<float> got = Elements(there[0].As<Variable>()->tensor()),
                           want = Elements(here[0].As<Variable>()->tensor());
  if (testing::HasFunctionsOfCpu()) {
    EXPECT_EQ(got, want);
  } else {
    EXPECT_THAT(got, Pointwise(FloatNear(2e-5f), want));  // ten units in the last place of 16
  }
}

// A daemon that has recorded the creation makes the value again, maybe on another device.
TEST_P(DeviceWorkerTest, InitialValuesAreMadeThereWithTheBitsOfTheCpu) {
  const Shape shape = {7, 5};
  const std::vector<std::pair<std::string, Program>> initial = {
      {"zeros", Zeros(shape)},
      {"full", Full(shape, 0.1)},
      {"uniform", Uniform(shape, -1, 1, 7)},
      {"normal", Normal(shape, 0.5, 2, 8)}};
  for (const bool rows : {false, true}) {
    for (const auto& [name, program] : initial) {
      CreateOptions there = On(device_), here = On("cpu");
      there.rows = here.rows = rows;
      const testing::NewKernels kernels(host_.device());
      const std::string label = absl::StrCat(name, rows ? "/rows" : "");
      const RRef far = Must(trainer_->GetOrCreate("owner", label + "/there", program, there));
      kernels.ExpectSome();
      const RRef near = Must(trainer_->GetOrCreate("owner", label + "/here", program, here));
      EXPECT_EQ(SevenRows(far, rows), SevenRows(near, rows)) << label;
    }
  }
}

// A device may round its functions differently than the CPU.
TEST_P(DeviceWorkerTest, OtherInitialValuesAreMadeByTheCpu) {
  ProgramBuilder builder;
  const auto made = builder.Call(
      "exp", {builder.Call("full", {}, {{"shape", std::vector<int64_t>{4}}, {"value", 0.1}})});
  const Program program = Must(builder.Build({made}));
  const std::optional<size_t> before = testing::KernelsGiven(host_.device());
  const RRef far = Must(trainer_->GetOrCreate("owner", "there", program, On(device_)));
  EXPECT_EQ(testing::KernelsGiven(host_.device()), before);
  const RRef near = Must(trainer_->GetOrCreate("owner", "here", program, On("cpu")));
  EXPECT_EQ(Read(*trainer_, far), Read(*trainer_, near));
}

// Those of the caller are there too.
TEST_P(DeviceWorkerTest, IdsThatAProgramCreatesAreOnTheHost) {
  ProgramBuilder builder;
  const auto table = builder.Input(), ids = builder.Input();
  const auto one = builder.Call("full", {},
                                {{"shape", std::vector<int64_t>{2}},
                                 {"value", 1.0},
                                 {"dtype", static_cast<int64_t>(DType::kI64)}});
  const Function program =
      Must(builder.Build({builder.Call("embedding", {table, builder.Call("add", {ids, one})})}));
  const Tensor asked = Tensor::Of<int64_t>({2}, {0, 1});
  const Values rows = Must(trainer_->RpcSync("owner", program, {There("w", {4, 2}), asked}));
  EXPECT_THAT(Elements(rows[0].As<Variable>()->tensor()), ElementsAre(2, 2, 2, 2));
}

TEST_P(DeviceWorkerTest, RowsThereEqualRowsOfTheCpu) {
  CreateOptions there = On(device_), here = On("cpu");
  there.rows = here.rows = true;
  const auto step = [&](DistributedOptimizer& optimizer, const RRef& table, int64_t more) {
    Context context = Must(trainer_->NewContext());
    const Tensor ids = Tensor::Of<int64_t>({4}, {7, 0, 7, more});
    const Variable rows = Must(trainer_->LookUpRows({{table, ids}}, context))[0];
    ASSERT_TRUE(context.Backward({Sum(rows * rows)}).ok());
    const absl::Status stepped = optimizer.Step(context);
    ASSERT_TRUE(stepped.ok()) << stepped;
  };
  const auto rows_of = [&](const RRef& table) {
    const Tensor ids = Tensor::Of<int64_t>({10}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    return Elements(Must(trainer_->LookUpRows({{table, ids}}))[0].tensor());
  };
  for (const char* type : {"sgd", "adagrad", "rowwise_adagrad", "sparse_adam"}) {
    const std::string name = type;
    const Program create = Uniform({10, 3}, -1, 1, 7);
    const RRef far = Must(trainer_->GetOrCreate("owner", name + "/there", create, there));
    const RRef near = Must(trainer_->GetOrCreate("owner", name + "/here", create, here));
    const OptimizerSpec spec{name, {{"lr", 0.1}}};
    auto on_device = Must(DistributedOptimizer::Create(*trainer_, spec, {far}));
    auto on_cpu = Must(DistributedOptimizer::Create(*trainer_, spec, {near}));
    for (int64_t more : {3, 9, 0}) {
      step(*on_device, far, more);
      step(*on_cpu, near, more);
    }
    EXPECT_THAT(rows_of(far), Pointwise(FloatNear(1e-5f), rows_of(near))) << name;
    const Tensor elements = *Tensor::Full({10, 3}, DType::kF32, 5);
    Must(trainer_->Assign(far, elements));
    EXPECT_THAT(rows_of(far), ::testing::Each(5)) << name;
  }
  EXPECT_THAT(Must(trainer_->List("owner", "sgd/there"))[0].kind, HasSubstr("on " + device_));
}

TEST_P(DeviceWorkerTest, AProgramOverBothPlacesNamesThem) {
  const RRef w = There("w"), b = Must(Make("b", "cpu"));
  const auto mixed = trainer_->RpcSync("owner", Function::Operator("add", 2), {w, b}).status();
  EXPECT_EQ(mixed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Text(mixed), AllOf(HasSubstr("Add"), HasSubstr(device_), HasSubstr("cpu")));
}

// An owner with a trainer, and a disk for what they save. `own`: the owner writes it itself.
class SavingWorld {
 public:
  explicit SavingWorld(bool own) : host_("owner", Options(own)) {}

  Worker& trainer() { return *trainer_; }
  RRef Make(const std::string& name, const Shape& shape, bool rows) {
    CreateOptions on_device;
    on_device.requires_grad = true;
    on_device.rows = rows;
    on_device.device = testing::NameOfDevice();
    return Must(trainer_->GetOrCreate("owner", name, Uniform(shape, -1, 1, 7), on_device));
  }
  void Save() {
    SaveOptions saving;
    saving.dir = "saves";
    saving.files = disk_;
    Must(SaveModel(*trainer_, saving));
  }
  void Load() {
    LoadOptions loading;
    loading.dir = "saves";
    loading.files = disk_;
    Must(LoadModel(*trainer_, loading));
  }

 private:
  worker::RuntimeOptions Options(bool own) const {
    worker::RuntimeOptions options;
    if (own) options.checkpoint_root = std::make_shared<checkpoint::FakeRoot>(disk_);
    return options;
  }

  const std::shared_ptr<checkpoint::FakeFileSystem> disk_ =
      std::make_shared<checkpoint::FakeFileSystem>();
  OwnerUnderTest host_;
  const std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {host_.owner().address()});
};

class DeviceSaveTest : public testing::OnDevice<::testing::TestWithParam<bool>> {};

INSTANTIATE_TEST_SUITE_P(Ways, DeviceSaveTest, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Own" : "Streamed"; });

TEST_P(DeviceSaveTest, SavesAndLoads) {
  SavingWorld world(GetParam());
  Worker& trainer = world.trainer();
  const RRef w = world.Make("w", {40}, /*rows=*/false);
  auto optimizer = Must(DistributedOptimizer::Create(trainer, "main", Adam{0.1}, {w}));
  const auto step = [&] {
    Context context = Must(trainer.NewContext());
    const Variable here = Must(trainer.ToHere({w}, context))[0];
    ASSERT_TRUE(context.Backward({Sum(here * here)}).ok());
    ASSERT_TRUE(optimizer->Step(context).ok());
  };
  step();
  step();
  world.Save();
  const std::vector<float> saved = Read(trainer, w);
  step();
  const std::vector<float> later = Read(trainer, w);

  world.Load();
  EXPECT_EQ(Read(trainer, w), saved);
  optimizer = Must(DistributedOptimizer::Create(trainer, "main", Adam{0.1}, {w}));
  step();  // needs the state too
  EXPECT_EQ(Read(trainer, w), later);
  EXPECT_THAT(Must(trainer.List("owner", "w"))[0].kind, HasSubstr("on " + testing::NameOfDevice()));
}

// The state comes back too. With momentum, the rows that have some of it move without a gradient.
TEST_P(DeviceSaveTest, SavesAndLoadsTables) {
  const std::vector<OptimizerSpec> specs = {{"sgd", {{"lr", 0.1}, {"momentum", 0.9}}},
                                            {"adagrad", {{"lr", 0.1}}},
                                            {"rowwise_adagrad", {{"lr", 0.1}}},
                                            {"sparse_adam", {{"lr", 0.1}}}};
  for (const OptimizerSpec& spec : specs) {
    SCOPED_TRACE(spec.type);
    SavingWorld world(GetParam());
    Worker& trainer = world.trainer();
    const RRef table = world.Make("table", {10, 3}, /*rows=*/true);
    auto optimizer = Must(DistributedOptimizer::Create(trainer, "main", spec, {table}));
    const auto step = [&](const std::vector<int64_t>& ids) {
      Context context = Must(trainer.NewContext());
      const auto count = static_cast<int64_t>(ids.size());
      const Tensor numbers = Tensor::Of<int64_t>({count}, ids);
      const Variable rows = Must(trainer.LookUpRows({{table, numbers}}, context))[0];
      ASSERT_TRUE(context.Backward({Sum(rows * rows)}).ok());
      const absl::Status stepped = optimizer->Step(context);
      ASSERT_TRUE(stepped.ok()) << stepped;
    };
    const auto rows = [&] {
      const Tensor ids = Tensor::Of<int64_t>({10}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
      return Elements(Must(trainer.LookUpRows({{table, ids}}))[0].tensor());
    };
    step({1, 5, 1});
    step({5, 9});
    world.Save();
    const std::vector<float> saved = rows();
    step({1, 2});
    const std::vector<float> later = rows();
    step({0, 7});

    world.Load();
    EXPECT_EQ(rows(), saved);
    optimizer = Must(DistributedOptimizer::Create(trainer, "main", spec, {table}));
    step({1, 2});
    EXPECT_EQ(rows(), later);
  }
}

TEST_P(DeviceWorkerTest, UnknownDevicesAndOtherDevicesAreRefused) {
  const absl::Status unknown = Make("w", "cuda:7").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Text(unknown),
              AllOf(HasSubstr("cuda:7"), HasSubstr("cpu, " + device_), HasSubstr("w")));
  There("w");
  const absl::Status other = Make("w", "cpu").status();
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(other), HasSubstr(device_));
}

TEST_P(DeviceWorkerTest, MatricesAreMultipliedThere) {
  const RRef w = There("w", {4, 2});
  const RRef other = There("other", {2, 4});
  const testing::NewKernels kernels(host_.device());
  const Values results =
      Must(trainer_->RpcSync("owner", Function::Operator("matmul", 2), {w, other}));
  kernels.ExpectSome();
  EXPECT_THAT(Elements(results[0].As<Variable>()->tensor()),
              ElementsAreArray(std::vector<float>(16, 8)));
}

TEST_P(DeviceWorkerTest, OnlyFloatingTensorsAreHostedThere) {
  const absl::Status ids =
      trainer_->GetOrCreate("owner", "ids", Full({4}, 1, DType::kI64), On(device_)).status();
  EXPECT_EQ(ids.code(), absl::StatusCode::kInvalidArgument) << ids;
}

// The gradient arrives on the host, and the program's operators are on the device.
TEST_P(DeviceWorkerTest, BackwardThroughAProgramThere) {
  const RRef w = There("w");
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Sgd{0.5}, {w}));
  Context context = Must(trainer_->NewContext());
  CallOptions recorded;
  recorded.context = &context;
  const Values results =
      Must(trainer_->RpcSync("owner", Function::Operator("relu", 1), {w}, recorded));
  // Another gradient of the same parameter stays on the host.
  const Variable here = Must(trainer_->ToHere({w}, context))[0];
  const absl::Status back = context.Backward({Sum(*results[0].As<Variable>()) + Sum(here)});
  ASSERT_TRUE(back.ok()) << back;
  const absl::Status stepped = optimizer->Step(context);
  ASSERT_TRUE(stepped.ok()) << stepped;
  EXPECT_THAT(Read(*trainer_, w), ElementsAre(1, 1, 1, 1));
}

TEST_P(DeviceWorkerTest, AStepAfterALookUpOfNoRowsChangesNothing) {
  CreateOptions there = On(device_);
  there.rows = true;
  const RRef table =
      Must(trainer_->GetOrCreate("owner", "table", Uniform({4, 2}, -1, 1, 7), there));
  const Tensor all = Tensor::Of<int64_t>({4}, {0, 1, 2, 3});
  const auto rows = [&] {
    return Elements(Must(trainer_->LookUpRows({{table, all}}))[0].tensor());
  };
  const auto before = rows();
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Adagrad{0.1}, {table}));
  Context context = Must(trainer_->NewContext());
  const Tensor none = *Tensor::Full({0}, DType::kI64, 0);
  const Variable looked_up = Must(trainer_->LookUpRows({{table, none}}, context))[0];
  ASSERT_TRUE(context.Backward({Sum(looked_up)}).ok());
  const absl::Status stepped = optimizer->Step(context);
  ASSERT_TRUE(stepped.ok()) << stepped;
  EXPECT_EQ(rows(), before);
}

TEST_P(DeviceWorkerTest, AFullDeviceRefusesAndTheCpuGoesOn) {
  const size_t budget = host_.device().budget_bytes();
  const Shape large{static_cast<int64_t>(budget / sizeof(float)) + 1};
  const absl::Status full = Make("large", device_, large).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(Text(full), HasSubstr(std::to_string(budget)));
  EXPECT_TRUE(Make("large", "cpu", large).ok());
  EXPECT_EQ(host_.device().used_bytes(), 0u);
}

}  // namespace
}  // namespace psd
