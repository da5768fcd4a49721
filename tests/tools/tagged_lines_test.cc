#include "tools/cli/tagged_lines.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "absl/strings/string_view.h"

namespace psd::cli {
namespace {

std::string Tag(std::initializer_list<absl::string_view> pieces) {
  TaggedLines lines("[3] ");
  std::string out;
  for (absl::string_view piece : pieces) lines.Add(piece, &out);
  lines.End(&out);
  return out;
}

TEST(TaggedLines, EachLineHasTheTagInFront) {
  EXPECT_EQ(Tag({"one\ntwo\n"}), "[3] one\n[3] two\n");
  EXPECT_EQ(Tag({"\n\n"}), "[3] \n[3] \n");
  EXPECT_EQ(Tag({}), "");
}

TEST(TaggedLines, ALineThatComesInPiecesIsOneLine) {
  EXPECT_EQ(Tag({"o", "", "n", "e\ntw", "o\n"}), "[3] one\n[3] two\n");
  EXPECT_EQ(Tag({absl::string_view("a\0b\r", 4), "c\n"}), std::string("[3] a\0b\rc\n", 10));
}

TEST(TaggedLines, TheLastLineNeedsNoNewline) {
  EXPECT_EQ(Tag({"one\ntwo"}), "[3] one\n[3] two\n");
}

TEST(TaggedLines, NothingIsWrittenBeforeItsLineEnds) {
  TaggedLines lines("[3] ");
  std::string out;
  lines.Add("one\ntwo", &out);
  EXPECT_EQ(out, "[3] one\n");
}

TEST(TaggedLines, ALineThatDoesNotEndIsCut) {
  const std::string most(TaggedLines::kMostLineBytes, 'x');
  EXPECT_EQ(Tag({most, "\n"}), "[3] " + most + "\n") << "it ends in time";
  EXPECT_EQ(Tag({most + "yz\n"}), "[3] " + most + "\n[3] yz\n");
  EXPECT_EQ(Tag({most, most, "\nz"}), "[3] " + most + "\n[3] " + most + "\n[3] z\n");
}

}  // namespace
}  // namespace psd::cli
