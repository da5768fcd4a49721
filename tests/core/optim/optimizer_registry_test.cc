#include "core/optim/optimizer_registry.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "core/optim/functional_optimizer.h"
#include "core/tensor/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status Refusal(const OptimizerSpec& spec) {
  return OptimizerRegistry::Builtin().Create(spec).status();
}
bool Accepts(const OptimizerSpec& spec) {
  return Refusal(spec).ok();
}

TEST(OptimizerSpec, PrintsEqualIfAndOnlyIfEqual) {
  OptimizerSpec a{"adam", {{"lr", 0.001}, {"beta1", 0.9}}};
  EXPECT_EQ(a.ToString(), "adam(beta1=0.9, lr=0.001)");
  OptimizerSpec b = a;
  EXPECT_TRUE(a == b);
  b.options["lr"] = std::nextafter(0.001, 1);
  EXPECT_NE(a.ToString(), b.ToString());
}

TEST(OptimizerRegistry, DefaultsArePyTorchs) {
  auto sgd = *OptimizerRegistry::Builtin().Create({"sgd", {}});
  EXPECT_EQ(sgd->spec().ToString(),
            "sgd(dampening=0, lr=0.01, maximize=0, momentum=0, nesterov=0, weight_decay=0)");
  auto adam = *OptimizerRegistry::Builtin().Create({"adam", {}});
  EXPECT_EQ(adam->spec().ToString(),
            "adam(amsgrad=0, beta1=0.9, beta2=0.999, eps=1e-08, lr=0.001, maximize=0, "
            "weight_decay=0)");
  auto adamw = *OptimizerRegistry::Builtin().Create({"adamw", {}});
  EXPECT_EQ(adamw->spec().options.at("weight_decay"), 0.01);
}

TEST(OptimizerRegistry, StateIsWhatTheFormulaNeeds) {
  const auto slots = [](const OptimizerSpec& spec) {
    std::string names;
    for (const auto& slot : (*OptimizerRegistry::Builtin().Create(spec))->Slots(DType::kF32))
      names += slot.name + " ";
    return names;
  };
  EXPECT_EQ(slots({"sgd", {}}), "");
  EXPECT_EQ(slots({"sgd", {{"momentum", 0.9}}}), "momentum_buffer ");
  EXPECT_EQ(slots({"adam", {}}), "exp_avg exp_avg_sq ");
  EXPECT_EQ(slots({"adamw", {{"amsgrad", 1}}}), "exp_avg exp_avg_sq max_exp_avg_sq ");
}

TEST(OptimizerRegistry, OPT_20_AdamRanges) {
  for (const char* type : {"adam", "adamw"}) {
    EXPECT_FALSE(Accepts({type, {{"lr", -1}}}));
    EXPECT_FALSE(Accepts({type, {{"eps", -1e-8}}}));
    EXPECT_FALSE(Accepts({type, {{"weight_decay", -0.1}}}));
    for (const char* beta : {"beta1", "beta2"}) {
      EXPECT_FALSE(Accepts({type, {{beta, 1}}}));
      EXPECT_FALSE(Accepts({type, {{beta, -0.1}}}));
      EXPECT_TRUE(Accepts({type, {{beta, 0}}}));
    }
    EXPECT_FALSE(Accepts({type, {{"amsgrad", 2}}}));
  }
  auto refused = Refusal({"adam", {{"beta1", 1.5}}});
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("beta1 = 1.5"), HasSubstr("below 1")));
}

TEST(OptimizerRegistry, OPT_21_OPT_22_SgdRanges) {
  for (const char* option : {"lr", "momentum", "weight_decay"})
    EXPECT_FALSE(Accepts({"sgd", {{option, -0.1}}})) << option;
  EXPECT_FALSE(Accepts({"sgd", {{"nesterov", 1}}}));
  EXPECT_FALSE(Accepts({"sgd", {{"nesterov", 1}, {"momentum", 0.9}, {"dampening", 0.1}}}));
  EXPECT_TRUE(Accepts({"sgd", {{"nesterov", 1}, {"momentum", 1}}}));
  EXPECT_TRUE(Accepts({"sgd", {{"dampening", 0.5}, {"momentum", 0.9}}}));
}

TEST(OptimizerRegistry, NotANumberIsInNoRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const char* option : {"lr", "beta1", "eps", "amsgrad"})
    EXPECT_FALSE(Accepts({"adam", {{option, nan}}})) << option;
  EXPECT_FALSE(Accepts({"sgd", {{"dampening", nan}}}));
  EXPECT_FALSE(Accepts({"sgd", {{"lr", std::numeric_limits<double>::infinity()}}}));
}

TEST(OptimizerRegistry, OPT_23_UnknownOptionNamesTheNearest) {
  auto refused = Refusal({"adam", {{"wieght_decay", 0.1}}});
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr("'wieght_decay'"), HasSubstr("did you mean 'weight_decay'?")));
  EXPECT_THAT(Refusal({"sgd", {{"betas", 0.1}}}).message(), HasSubstr("options: lr, momentum"));
}

TEST(OptimizerRegistry, UnknownTypeNamesTheNearest) {
  auto refused = Refusal({"adan", {}});
  EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(refused.message(), HasSubstr("did you mean 'adam'?"));
}

TEST(OptimizerRegistry, OPT_46_UsersRegisterMoreAndReplaceNone) {
  OptimizerRegistry registry = OptimizerRegistry::Builtin();
  const auto factory = [](const OptimizerSpec&) {
    return OptimizerRegistry::Builtin().Create({"sgd", {{"lr", 5}}});
  };
  ASSERT_TRUE(registry.Register("mine", factory).ok());
  EXPECT_EQ((*registry.Create({"mine", {}}))->spec().options.at("lr"), 5);
  EXPECT_EQ(registry.Register("mine", factory).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(registry.Register("adam", factory).code(), absl::StatusCode::kAlreadyExists);
}

TEST(OptimizerRegistry, StepsFloatsOnly) {
  auto adam = *OptimizerRegistry::Builtin().Create({"adam", {}});
  EXPECT_TRUE(adam->CheckDType(DType::kF32).ok());
  EXPECT_TRUE(adam->CheckDType(DType::kF64).ok());
  auto refused = adam->CheckDType(DType::kBF16);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("bf16"));
}

}  // namespace
}  // namespace psd::optim
