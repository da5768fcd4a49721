#include "examples/files/read_file.h"

#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::examples {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Writes a file for this test and returns its path.
std::string Write(const std::string& bytes) {
  const std::string path = ::testing::TempDir() + "/read_file_test";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(ReadFileTest, ReturnsAllBytes) {
  std::string bytes(200'000, 'x');
  bytes[7] = '\0';
  bytes.back() = '\n';
  const auto read = ReadFile(Write(bytes), bytes.size(), "");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, bytes);
  EXPECT_EQ(ReadFile(Write(""), 0, "").value(), "");
}

TEST(ReadFileTest, ErrorsNameThePathAndTheRemedy) {
  const absl::Status missing = ReadFile("/nowhere/x", 9, "give another path").status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), StartsWith("/nowhere/x cannot be read"));
  EXPECT_THAT(std::string(missing.message()), EndsWith("; give another path"));
  EXPECT_FALSE(ReadFile("/", 9, "").ok()) << "a folder";
  const absl::Status large = ReadFile(Write("0123456789"), 9, "give another path").status();
  EXPECT_TRUE(absl::IsResourceExhausted(large)) << large;
  EXPECT_THAT(std::string(large.message()), HasSubstr("larger than the limit of 9 bytes; give"));
}

}  // namespace
}  // namespace psd::examples
