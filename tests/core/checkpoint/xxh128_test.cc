#include "core/checkpoint/xxh128.h"

#include <string>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace psd::checkpoint {
namespace {

// The digests are those that `xxhsum -H128` prints.
TEST(Xxh128, KnownDigests) {
  Xxh128 sum;
  EXPECT_EQ(sum.Digest(), "99aa06d3014798d86001c324468d497f");
  sum.Add("abc");
  EXPECT_EQ(sum.Digest(), "06b05ab6733a618578af5f94892f3950");
}

TEST(Xxh128, PiecesMakeNoDifference) {
  const std::string text(100'000, 'x');
  Xxh128 whole, parts;
  whole.Add(text);
  for (size_t at = 0; at < text.size(); at += 777)
    parts.Add(absl::string_view(text).substr(at, 777));
  EXPECT_EQ(parts.Digest(), whole.Digest());
  parts.Add("");
  EXPECT_EQ(parts.Digest(), whole.Digest());
}

}  // namespace
}  // namespace psd::checkpoint
