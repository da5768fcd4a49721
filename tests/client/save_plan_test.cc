#include "client/save_plan.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

// What an owner says of itself is not believed.
TEST(SavePlan, AnOwnerThatContradictsItself) {
  worker::OwnerContents contents;
  worker::HostedValue& w = contents.values.emplace_back();
  w.value.name = "w";
  w.value.shape = Shape{2};
  worker::HostedOptimizer& optimizer = contents.optimizers.emplace_back();
  optimizer.optimizer.name = "main";
  optimizer.optimizer.groups.resize(1);
  optimizer.optimizer.parameters.resize(1);
  optimizer.optimizer.parameters[0].parameter = "w";
  for (const bool has_state : {false, true}) {
    if (has_state) {
      optimizer.state.resize(1);
      optimizer.optimizer.parameters[0].parameter = "v";
    }
    SavePlan plan;
    const absl::Status planned = PlanOwner("owner0", contents, plan);
    EXPECT_EQ(planned.code(), absl::StatusCode::kInternal) << planned;
    EXPECT_THAT(std::string(planned.message()), HasSubstr("owner0 says"));
  }
  optimizer.optimizer.parameters[0].parameter = "w";
  SavePlan plan;
  EXPECT_TRUE(PlanOwner("owner0", contents, plan).ok());
}

}  // namespace
}  // namespace psd
