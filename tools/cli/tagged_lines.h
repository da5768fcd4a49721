#pragma once

// Puts the name of a process in front of each line that it writes.

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace psd::cli {

// Takes the bytes that one process writes to one stream, in pieces of any size, and returns whole
// lines. A value.
class TaggedLines {
 public:
  // A longer line is cut into lines of this many bytes, because it cannot be kept until it ends.
  static constexpr size_t kMostLineBytes = 65'536;

  // `tag` goes in front of each line: "[3] ".
  explicit TaggedLines(std::string tag) : tag_(std::move(tag)) {}

  // Appends to `out` the lines that end in `bytes`. The rest is kept until its line ends.
  void Add(absl::string_view bytes, std::string* out);
  // Appends the last line, with a newline, if the process ended without one.
  void End(std::string* out);

 private:
  std::string tag_;
  std::string begun_;  // the beginning of a line, without its tag
};

}  // namespace psd::cli
