#pragma once

// Passes text on to standard output or standard error without ever waiting for the reader.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace psd::cli {

// Keeps text until the descriptor takes it. Thread-compatible.
class OutputSink {
 public:
  // Does not close `descriptor`.
  explicit OutputSink(int descriptor) : descriptor_(descriptor) {}

  int descriptor() const { return descriptor_; }
  bool empty() const { return text_.empty(); }
  // Whether so much text is kept that nothing more should be read for this sink.
  bool full() const { return text_.size() >= kFullBytes; }

  // Adds whole lines. If the reader is gone, they are dropped.
  void Add(absl::string_view lines);
  // Writes as much as the descriptor takes at once. Requires: poll has said that it takes some.
  void Write();
  void Clear() { text_.clear(); }

 private:
  static constexpr size_t kFullBytes = 262'144;

  const int descriptor_;
  bool broken_ = false;
  std::string text_;
};

}  // namespace psd::cli
