#include "tools/cli/progress_bar.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace psd::cli {
namespace {

// Returns the text that a bar writes to its file while `show` uses it.
template <typename Show>
std::string Written(bool terminal, Show show) {
  std::FILE* file = std::tmpfile();
  {
    ProgressBar bar(file, terminal);
    show(bar);
  }
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

const absl::Time kStart = absl::UnixEpoch();

TEST(ProgressBar, Text) {
  EXPECT_EQ(FormatProgress("saving", 256 << 20, 1 << 30, absl::Seconds(2)),
            "saving    [======>                 ]  25 %  256 MiB of 1 GiB  128 MiB/s  6 s left");
  EXPECT_EQ(FormatProgress("saving", 0, 0, absl::ZeroDuration()),
            "saving    [========================] 100 %  0 B of 0 B");
}

TEST(ProgressBar, OneLineOnATerminal) {
  const std::string text = Written(true, [](ProgressBar& bar) {
    bar.Show("saving", 1, 10, kStart);
    bar.Show("saving", 2, 10, kStart + absl::Milliseconds(1));  // too soon after the first one
    bar.Show("saving", 10, 10, kStart + absl::Milliseconds(2));
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 2);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.back(), '\n');
}

TEST(ProgressBar, PlainLinesElsewhere) {
  const std::string text = Written(false, [](ProgressBar& bar) {
    bar.Show("verifying", 1, 10, kStart);
    bar.Show("verifying", 5, 10, kStart + absl::Seconds(11));
    bar.Show("verifying", 10, 10, kStart + absl::Seconds(12));
    bar.Show("loading", 10, 10, kStart + absl::Seconds(13));
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 0);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
}

}  // namespace
}  // namespace psd::cli
