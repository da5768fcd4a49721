#include "client/save_plan.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The planner checks the description that an owner gives of itself.
TEST(SavePlan, AnOwnerThatContradictsItself) {
  services::OwnerContents contents;
  services::HostedValue& w = contents.values.emplace_back();
  w.value.name = "w";
  w.value.shape = Shape{2};
  services::HostedOptimizer& optimizer = contents.optimizers.emplace_back();
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

// Returns the contents of one of two owners: a part of the optimizer "main" over `parameter`, with
// loss scaling.
services::OwnerContents PartOver(const std::string& parameter, double loss_scale) {
  services::OwnerContents contents;
  services::HostedValue& value = contents.values.emplace_back();
  value.value.name = parameter;
  value.value.shape = Shape{2};
  services::HostedOptimizer& hosted = contents.optimizers.emplace_back();
  hosted.optimizer.name = "main";
  hosted.optimizer.groups.resize(1);
  hosted.optimizer.loss_scale = loss_scale;
  hosted.optimizer.parameters.resize(1);
  hosted.optimizer.parameters[0].parameter = parameter;
  hosted.state.resize(1);
  hosted.life.id = {1, 2};
  hosted.life.owners = {{"owner0", 7}, {"owner1", 8}};
  return contents;
}

TEST(SavePlan, ALossScaleThatOnlyAnOwnerThatIsLeftOutKnowsIsNamed) {
  const ContentsByOwner both = {{"owner0", PartOver("w", 4)}, {"owner1", PartOver("b", 65536)}};
  SavePlan whole;
  for (const auto& [owner, contents] : both) ASSERT_TRUE(PlanOwner(owner, contents, whole).ok());
  NameMissingLeads(both, whole);
  EXPECT_THAT(whole.index.left_out, IsEmpty());
  EXPECT_EQ(whole.index.optimizers[0].loss_scale, 4);

  SavePlan half;
  ASSERT_TRUE(PlanOwner("owner1", both.at("owner1"), half).ok());
  NameMissingLeads({{"owner1", both.at("owner1")}}, half);
  EXPECT_THAT(half.index.left_out,
              ElementsAre(AllOf(HasSubstr("owner0: the present loss scale of 'main'"),
                                HasSubstr("begins with the scale 65536"))));
}

}  // namespace
}  // namespace psd
