#include "bench/report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::bench {
namespace {

TEST(Report, JsonHasEveryField) {
  Row row;
  row.name = "call_empty";
  row.carrier = "grpc";
  row.unit = "us";
  row.value = 80.25;
  row.p99 = 120;
  row.floor = 75;
  row.efficiency = 0.9375;
  EXPECT_EQ(RowAsJson(row),
            R"({"case": "call_empty", "carrier": "grpc", "value": 80.25, "unit": "us", )"
            R"("p99": 120, "peer": null, "speedup": null, "floor": 75, "efficiency": 0.9375, )"
            R"("spread": null})");
}

TEST(Report, TextLeavesAbsentNumbersOut) {
  Row row;
  row.name = "opt_sgd";
  row.value = 4.25;
  row.efficiency = 0.957;
  row.spread = 0.03;
  const std::string text = RowAsText(row);
  EXPECT_THAT(text, testing::StartsWith("opt_sgd "));
  EXPECT_THAT(text, testing::EndsWith("      0.96     3 %"));
  EXPECT_EQ(text.size(), TableHead().size());
}

}  // namespace
}  // namespace psd::bench
