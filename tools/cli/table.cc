#include "tools/cli/table.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace psd::cli {
namespace {

constexpr char kBold[] = "\033[1m";
constexpr char kPlain[] = "\033[0m";

// Returns the number of characters: continuation bytes of UTF-8 take no column.
size_t Width(absl::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

Table::Table(std::vector<std::string> headings) : headings_(std::move(headings)) {
  for (std::string& heading : headings_) {
    right_.push_back(heading[0] == '>');
    if (right_.back()) heading.erase(0, 1);
  }
}

void Table::AddRow(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::ToString(bool color) const {
  std::vector<size_t> widths;
  for (const std::string& heading : headings_) widths.push_back(Width(heading));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string padding(widths[i] - Width(cells[i]), ' ');
      absl::StrAppend(&text, i == 0 ? "" : "  ", right_[i] ? padding : "", cells[i],
                      right_[i] || i + 1 == cells.size() ? "" : padding);
    }
    return text;
  };
  std::string text = absl::StrCat(color ? kBold : "", line(headings_), color ? kPlain : "", "\n");
  for (const auto& row : rows_) absl::StrAppend(&text, line(row), "\n");
  return text;
}

std::string Printable(absl::string_view text) {
  std::string printable(text);
  for (char& c : printable) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return printable;
}

std::string FormatBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 || value >= 100 ? absl::StrFormat("%.0f %s", value, kUnits[unit])
                                   : absl::StrFormat("%.3g %s", value, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  if (seconds < 10) return absl::StrFormat("%.2g s", seconds);
  const auto whole = static_cast<int64_t>(seconds);
  if (whole < 60) return absl::StrCat(whole, " s");
  if (whole < 3600) return absl::StrCat(whole / 60, " min ", whole % 60, " s");
  return absl::StrCat(whole / 3600, " h ", whole / 60 % 60, " min");
}

std::string FormatIncarnation(uint64_t incarnation) {
  return absl::StrFormat("%016x", incarnation);
}

std::string FormatShape(const std::vector<int64_t>& extents) {
  return absl::StrCat("[", absl::StrJoin(extents, ", "), "]");
}

}  // namespace psd::cli
