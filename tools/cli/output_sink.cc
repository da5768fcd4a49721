#include "tools/cli/output_sink.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace psd::cli {

void OutputSink::Add(absl::string_view lines) {
  if (!broken_) text_.append(lines.data(), lines.size());
}

void OutputSink::Write() {
  // A pipe that accepts anything accepts at least this much without blocking.
  const ssize_t wrote =
      ::write(descriptor_, text_.data(), std::min<size_t>(text_.size(), PIPE_BUF));
  if (wrote >= 0) {
    text_.erase(0, static_cast<size_t>(wrote));
  } else if (errno != EINTR && errno != EAGAIN) {
    broken_ = true;
    text_.clear();
  }
}

}  // namespace psd::cli
