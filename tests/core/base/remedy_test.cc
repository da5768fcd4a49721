#include "core/base/remedy.h"

#include "core/base/status.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

TEST(Remedy, StandsInTheTextAndInTheDetail) {
  const absl::Status lost =
      WithDetail(absl::UnavailableError("owner0 is gone"), {"owner0", "w", "", true});
  const absl::Status status = WithRemedy(lost, "start it");
  EXPECT_EQ(status.message(), "owner0 is gone; start it");
  EXPECT_EQ(GetDetail(status), (ErrorDetail{"owner0", "w", "start it", true}));
  EXPECT_EQ(GetDetail(WithRemedy(absl::NotFoundError("x"), "look"))->remedy, "look");
  EXPECT_TRUE(WithRemedy(absl::OkStatus(), "none").ok());
}

}  // namespace
}  // namespace psd
