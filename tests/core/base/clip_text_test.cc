#include "core/base/clip_text.h"

#include <string>

#include "gtest/gtest.h"

namespace psd {
namespace {

TEST(ClipText, LeavesAShortTextAlone) {
  EXPECT_EQ(ClipText("", 4), "");
  EXPECT_EQ(ClipText("four", 4), "four");
}

TEST(ClipText, KeepsTheBeginningAndTheEnd) {
  EXPECT_EQ(ClipText("0123456789", 4), "012 [6 bytes left out] 9");
}

}  // namespace
}  // namespace psd
