#include "tools/cli/progress_bar.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/cli/table.h"

namespace psd::cli {
namespace {

constexpr int kBarWidth = 24;
constexpr absl::Duration kTerminalInterval = absl::Milliseconds(100);
constexpr absl::Duration kPlainInterval = absl::Seconds(10);

}  // namespace

std::string FormatProgress(absl::string_view activity, uint64_t bytes, uint64_t total_bytes,
                           absl::Duration elapsed) {
  const double part =
      total_bytes == 0
          ? 1
          : std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total_bytes));
  const int filled = static_cast<int>(part * kBarWidth);
  std::string bar(static_cast<size_t>(filled), '=');
  if (filled < kBarWidth) bar += '>';
  bar.resize(kBarWidth, ' ');
  std::string text =
      absl::StrFormat("%-9s [%s] %3d %%  %s of %s", activity, bar, static_cast<int>(part * 100),
                      FormatBytes(bytes), FormatBytes(total_bytes));
  const double seconds = absl::ToDoubleSeconds(elapsed);
  if (seconds <= 0 || bytes == 0) return text;
  const double rate = static_cast<double>(bytes) / seconds;
  absl::StrAppend(&text, "  ", FormatBytes(static_cast<uint64_t>(rate)), "/s  ");
  if (bytes >= total_bytes) return absl::StrCat(text, FormatSeconds(seconds));
  return absl::StrCat(text, FormatSeconds(static_cast<double>(total_bytes - bytes) / rate),
                      " left");
}

ProgressBar::~ProgressBar() {
  EndLine();
}

void ProgressBar::EndLine() {
  if (open_line_) std::fprintf(out_, "\n");
  open_line_ = false;
}

void ProgressBar::Show(absl::string_view activity, uint64_t bytes, uint64_t total_bytes,
                       absl::Time now) {
  if (activity_ != activity) {
    EndLine();
    activity_ = std::string(activity);
    started_ = now;
    shown_ = terminal_ ? absl::InfinitePast() : now;
  }
  const absl::Duration interval = terminal_ ? kTerminalInterval : kPlainInterval;
  if (bytes < total_bytes && now - shown_ < interval) return;
  shown_ = now;
  const std::string text = FormatProgress(activity, bytes, total_bytes, now - started_);
  if (terminal_) {
    std::fprintf(out_, "\r\033[K%s", text.c_str());
    open_line_ = true;
  } else {
    std::fprintf(out_, "%s\n", text.c_str());
  }
  std::fflush(out_);
}

}  // namespace psd::cli
