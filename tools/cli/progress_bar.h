#pragma once

// Shows the progress of a long transfer: on a terminal a line that is rewritten, elsewhere plain
// lines.

#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace psd::cli {

// Returns, for example,
// "saving     [=========>          ]  45 %  1.2 GiB of 2.7 GiB  812 MiB/s  2 s left".
std::string FormatProgress(absl::string_view activity, uint64_t bytes, uint64_t total_bytes,
                           absl::Duration elapsed);

// Writes to `out` at most ten times a second on a terminal and every ten seconds elsewhere, and
// always at the end of an activity. Thread-compatible.
class ProgressBar {
 public:
  ProgressBar(std::FILE* out, bool terminal) : out_(out), terminal_(terminal) {}
  // Ends the line, so that further output starts on a new line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Show(absl::string_view activity, uint64_t bytes, uint64_t total_bytes, absl::Time now);

 private:
  void EndLine();

  std::FILE* const out_;
  const bool terminal_;
  std::string activity_;
  absl::Time started_;
  absl::Time shown_ = absl::InfinitePast();
  bool open_line_ = false;
};

}  // namespace psd::cli
