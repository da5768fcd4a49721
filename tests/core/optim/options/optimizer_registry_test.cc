#include "core/optim/options/optimizer_registry.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "core/optim/functional/functional_optimizer.h"
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

std::string Text(const std::string& type) {
  return (*OptimizerRegistry::Builtin().Create({type, {}}))->spec().ToString();
}

TEST(OptimizerRegistry, OPT_24_DefaultsAreThoseOfPyTorchsFunctionalOptimizers) {
  EXPECT_EQ(Text("sgd"),
            "sgd(dampening=0, lr=0.01, maximize=0, momentum=0, nesterov=0, "
            "stochastic_rounding=0, weight_decay=0)");
  EXPECT_EQ(Text("adagrad"),
            "adagrad(eps=1e-10, initial_accumulator_value=0, lr=0.01, lr_decay=0, maximize=0, "
            "stochastic_rounding=0, weight_decay=0)");
  EXPECT_EQ(Text("adam"),
            "adam(amsgrad=0, beta1=0.9, beta2=0.999, eps=1e-08, lr=0.001, maximize=0, "
            "stochastic_rounding=0, weight_decay=0)");
  EXPECT_EQ(Text("adamw"),
            "adamw(amsgrad=0, beta1=0.9, beta2=0.999, eps=1e-08, lr=0.001, maximize=0, "
            "stochastic_rounding=0, weight_decay=0.01)");
  // The learning rate is not 0.002, the default of PyTorch's class of that name.
  EXPECT_EQ(Text("adamax"),
            "adamax(beta1=0.9, beta2=0.999, eps=1e-08, lr=0.001, maximize=0, "
            "stochastic_rounding=0, weight_decay=0)");
  EXPECT_EQ(Text("adadelta"),
            "adadelta(eps=1e-06, lr=1, maximize=0, rho=0.9, stochastic_rounding=0, "
            "weight_decay=0)");
  EXPECT_EQ(Text("rmsprop"),
            "rmsprop(alpha=0.99, centered=0, eps=1e-08, lr=0.01, maximize=0, momentum=0, "
            "stochastic_rounding=0, weight_decay=0)");
  EXPECT_EQ(Text("rprop"),
            "rprop(etaminus=0.5, etaplus=1.2, lr=0.01, maximize=0, step_size_max=50, "
            "step_size_min=1e-06, stochastic_rounding=0)");
}

std::string SlotText(const OptimizerSpec& spec, DType dtype = DType::kF32) {
  std::string text;
  for (const auto& slot : (*OptimizerRegistry::Builtin().Create(spec))->Slots(dtype)) {
    text += slot.name;
    if (slot.initial != 0) text += "=" + std::to_string(slot.initial).substr(0, 4);
    text += slot.dtype == DType::kF64 ? ":f64 " : " ";
  }
  return text;
}

TEST(OptimizerRegistry, StateIsWhatTheFormulaNeeds) {
  EXPECT_EQ(SlotText({"sgd", {}}), "");
  EXPECT_EQ(SlotText({"sgd", {{"momentum", 0.9}}}), "momentum_buffer ");
  EXPECT_EQ(SlotText({"adam", {}}), "exp_avg exp_avg_sq ");
  EXPECT_EQ(SlotText({"adamw", {{"amsgrad", 1}}}), "exp_avg exp_avg_sq max_exp_avg_sq ");
  EXPECT_EQ(SlotText({"adamax", {}}), "exp_avg exp_inf ");
  EXPECT_EQ(SlotText({"adadelta", {}}), "square_avg acc_delta ");
  EXPECT_EQ(SlotText({"rmsprop", {}}), "square_avg ");
  EXPECT_EQ(SlotText({"rmsprop", {{"centered", 1}}}), "square_avg grad_avg ");
  EXPECT_EQ(SlotText({"rmsprop", {{"centered", 1}, {"momentum", 0.1}}}),
            "square_avg momentum_buffer grad_avg ");
  EXPECT_EQ(SlotText({"rprop", {{"lr", 0.25}}}), "prev step_size=0.25 ");
  EXPECT_EQ(SlotText({"adam", {}}, DType::kBF16), "exp_avg exp_avg_sq ");
  EXPECT_EQ(SlotText({"adam", {}}, DType::kF64), "exp_avg:f64 exp_avg_sq:f64 ");
}

TEST(OptimizerRegistry, OPT_30_AdagradStateStartsAtTheInitialAccumulatorValue) {
  EXPECT_EQ(SlotText({"adagrad", {}}), "sum ");
  EXPECT_EQ(SlotText({"adagrad", {{"initial_accumulator_value", 0.25}}}), "sum=0.25 ");
}

TEST(OptimizerRegistry, OPT_20_AdamAdamWAdamaxRanges) {
  for (const char* type : {"adam", "adamw", "adamax"}) {
    EXPECT_FALSE(Accepts({type, {{"lr", -1}}}));
    EXPECT_FALSE(Accepts({type, {{"eps", -1e-8}}}));
    EXPECT_FALSE(Accepts({type, {{"weight_decay", -0.1}}}));
    for (const char* beta : {"beta1", "beta2"}) {
      EXPECT_FALSE(Accepts({type, {{beta, 1}}}));
      EXPECT_FALSE(Accepts({type, {{beta, -0.1}}}));
      EXPECT_TRUE(Accepts({type, {{beta, 0}}}));
    }
  }
  EXPECT_FALSE(Accepts({"adam", {{"amsgrad", 2}}}));
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

TEST(OptimizerRegistry, OPT_21_OPT_22_AdagradAdadeltaRmsPropRanges) {
  for (const char* option : {"lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"})
    EXPECT_FALSE(Accepts({"adagrad", {{option, -0.1}}})) << option;
  for (const char* option : {"lr", "eps", "momentum", "weight_decay", "alpha"})
    EXPECT_FALSE(Accepts({"rmsprop", {{option, -0.1}}})) << option;
  EXPECT_FALSE(Accepts({"rmsprop", {{"centered", 0.5}}}));
  for (const char* option : {"lr", "eps", "weight_decay", "rho"})
    EXPECT_FALSE(Accepts({"adadelta", {{option, -0.1}}})) << option;
  EXPECT_TRUE(Accepts({"adadelta", {{"rho", 0}}}));
  EXPECT_TRUE(Accepts({"adadelta", {{"rho", 1}}}));
  EXPECT_THAT(Refusal({"adadelta", {{"rho", 1.5}}}).message(),
              AllOf(HasSubstr("rho = 1.5"), HasSubstr("at least 0 and at most 1")));
}

TEST(OptimizerRegistry, OPT_21_OPT_22_RpropRanges) {
  EXPECT_FALSE(Accepts({"rprop", {{"lr", -0.1}}}));
  for (const double bad : {0.0, 1.0, -1.0, 2.0})
    EXPECT_FALSE(Accepts({"rprop", {{"etaminus", bad}}})) << bad;
  for (const double bad : {1.0, 0.5, -2.0})
    EXPECT_FALSE(Accepts({"rprop", {{"etaplus", bad}}})) << bad;
  EXPECT_FALSE(Accepts({"rprop", {{"step_size_min", -1}}}));
  EXPECT_THAT(Refusal({"rprop", {{"step_size_min", 2}, {"step_size_max", 1}}}).message(),
              AllOf(HasSubstr("step_size_min = 2"), HasSubstr("at most step_size_max = 1")));
  EXPECT_THAT(Refusal({"rprop", {{"etaplus", 0.5}}}).message(), HasSubstr("above 1"));
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
  for (const char* builtin :
       {"sgd", "adagrad", "adam", "adamw", "adamax", "adadelta", "rmsprop", "rprop"}) {
    EXPECT_EQ(registry.Register(builtin, factory).code(), absl::StatusCode::kAlreadyExists);
    EXPECT_NE((*registry.Create({builtin, {}}))->spec().options.at("lr"), 5);
  }
}

TEST(OptimizerRegistry, StepsFloatsOnly) {
  auto adam = *OptimizerRegistry::Builtin().Create({"adam", {}});
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16})
    EXPECT_TRUE(adam->CheckDType(dtype).ok()) << DTypeName(dtype);
  auto refused = adam->CheckDType(DType::kI64);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("i64"));
}

TEST(OptimizerRegistry, StochasticRoundingIsForBFloat16Only) {
  auto sgd = *OptimizerRegistry::Builtin().Create({"sgd", {{"stochastic_rounding", 1}}});
  EXPECT_TRUE(sgd->CheckDType(DType::kBF16).ok());
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16}) {
    auto refused = sgd->CheckDType(dtype);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("must be 0"));
  }
}

}  // namespace
}  // namespace psd::optim
