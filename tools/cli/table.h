#pragma once

// Formats output for people: aligned columns, and sizes and times in suitable units.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace psd::cli {

// A table whose columns are as wide as their widest cells. Columns are left-aligned, unless their
// heading says otherwise. A value.
class Table {
 public:
  // A heading that starts with '>' makes its column right-aligned.
  explicit Table(std::vector<std::string> headings);

  // Requires: as many cells as headings. Characters that are not printable are replaced by '?'.
  void AddRow(std::vector<std::string> cells);

  bool empty() const { return rows_.empty(); }
  // With `color`, headings are bold.
  std::string ToString(bool color) const;

 private:
  std::vector<std::string> headings_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

// Returns `text` with '?' in place of all characters that are not printable. UTF-8 is kept.
std::string Printable(absl::string_view text);

std::string FormatBytes(uint64_t bytes);    // "0 B", "1.5 KiB", "12 MiB"
std::string FormatSeconds(double seconds);  // "0.25 s", "42 s", "3 min 12 s", "2 h 5 min"
std::string FormatIncarnation(uint64_t incarnation);
std::string FormatShape(const std::vector<int64_t>& extents);  // "[2, 3]"

}  // namespace psd::cli
