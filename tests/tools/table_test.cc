#include "tools/cli/table.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace psd::cli {
namespace {

TEST(Table, AlignsColumns) {
  Table table({"NAME", ">VERSION", "KIND"});
  EXPECT_TRUE(table.empty());
  table.AddRow({"layer1/weight", "7", "parameter"});
  table.AddRow({"ä", "1234567890", "x"});
  EXPECT_EQ(table.ToString(/*color=*/false),
            "NAME              VERSION  KIND\n"
            "layer1/weight           7  parameter\n"
            "ä              1234567890  x\n");
  EXPECT_EQ(table.ToString(/*color=*/true).substr(0, 8), "\033[1mNAME");
}

TEST(Table, WhatAnOwnerSendsMovesNoCursor) {
  Table table({"NAME"});
  table.AddRow({"a\033[2Jb\n\x7f"});
  EXPECT_EQ(table.ToString(false), "NAME\na?[2Jb??\n");
}

TEST(Format, Bytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(uint64_t{512} << 20), "512 MiB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16 EiB");
}

TEST(Format, Seconds) {
  EXPECT_EQ(FormatSeconds(0.25), "0.25 s");
  EXPECT_EQ(FormatSeconds(42.9), "42 s");
  EXPECT_EQ(FormatSeconds(192), "3 min 12 s");
  EXPECT_EQ(FormatSeconds(7500), "2 h 5 min");
}

TEST(Format, ShapesAndIncarnations) {
  EXPECT_EQ(FormatShape({}), "[]");
  EXPECT_EQ(FormatShape({2, 3}), "[2, 3]");
  EXPECT_EQ(FormatIncarnation(0x1f), "000000000000001f");
}

}  // namespace
}  // namespace psd::cli
