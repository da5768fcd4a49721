#include "core/base/worker_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/base/quoted.h"

namespace psd {
namespace {

TEST(WorkerName, TheRule) {
  for (const char* name : {"a", "owner-0", "tools:1", "A_9"})
    EXPECT_TRUE(CheckWorkerName(name).ok());
  EXPECT_TRUE(CheckWorkerName(std::string(kMaxWorkerNameBytes, 'x')).ok());
  for (const char* name : {"", "a b", "a\nb", "a.b", "../a", "\xc3\xa4"}) {
    EXPECT_EQ(CheckWorkerName(name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST(WorkerName, TheMessageIsShortWhateverTheName) {
  const absl::Status status = CheckWorkerName(std::string(10'000'000, 'x'));
  EXPECT_LT(status.message().size(), 300u);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("(10000000 bytes)"));
}

TEST(Quoted, IsOneShortLine) {
  EXPECT_EQ(Quoted("owner0"), "'owner0'");
  EXPECT_EQ(Quoted("a\nb\x1b"), "'a?b?'");
  EXPECT_EQ(Quoted(std::string(65, 'x')), "'" + std::string(64, 'x') + "...'");
}

}  // namespace
}  // namespace psd
