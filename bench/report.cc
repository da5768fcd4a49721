#include "bench/report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace psd::bench {
namespace {

std::string Number(const std::optional<double>& value) {
  return value.has_value() ? absl::StrFormat("%.5g", *value) : "";
}

std::string JsonNumber(const std::optional<double>& value) {
  return value.has_value() ? absl::StrFormat("%.6g", *value) : "null";
}

}  // namespace

std::string RowAsJson(const Row& row) {
  return absl::StrCat("{\"case\": \"", row.name, "\", \"carrier\": \"", row.carrier,
                      "\", \"value\": ", JsonNumber(row.value), ", \"unit\": \"", row.unit,
                      "\", \"p99\": ", JsonNumber(row.p99), ", \"peer\": ", JsonNumber(row.peer),
                      ", \"speedup\": ", JsonNumber(row.speedup),
                      ", \"floor\": ", JsonNumber(row.floor),
                      ", \"efficiency\": ", JsonNumber(row.efficiency),
                      ", \"spread\": ", JsonNumber(row.spread), "}");
}

std::string TableHead() {
  return absl::StrFormat("%-18s %-7s %10s %-11s %9s %9s %8s %9s %10s %7s", "case", "carrier",
                         "value", "unit", "p99", "peer", "speedup", "floor", "efficiency",
                         "spread");
}

std::string RowAsText(const Row& row) {
  return absl::StrFormat("%-18s %-7s %10s %-11s %9s %9s %8s %9s %10s %7s", row.name, row.carrier,
                         Number(row.value), row.unit, Number(row.p99), Number(row.peer),
                         row.speedup ? absl::StrFormat("%.2f", *row.speedup) : "",
                         Number(row.floor),
                         row.efficiency ? absl::StrFormat("%.2f", *row.efficiency) : "",
                         row.spread ? absl::StrFormat("%.0f %%", 100 * *row.spread) : "");
}

}  // namespace psd::bench
