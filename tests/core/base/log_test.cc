#include "core/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"

namespace psd {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Logs one line and returns it.
std::string Logged(bool json, absl::string_view message, std::initializer_list<LogField> fields) {
  std::ostringstream out;
  NewStreamLogger(out, LogLevel::kDebug, json)->Log(LogLevel::kInfo, "event_name", message, fields);
  return out.str();
}

TEST(TextLogTest, HasTimeLevelEventMessageAndFields) {
  EXPECT_THAT(Logged(false, "trainer0 joined", {{"worker", "trainer0"}, {"rank", 3}}),
              MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z info +event_name  "
                           "trainer0 joined worker=trainer0 rank=3\n"));
}

TEST(TextLogTest, QuotesWhatCouldBeMistaken) {
  EXPECT_THAT(Logged(false, "m", {{"a", ""}, {"b", "x y"}, {"c", "k=v"}, {"d", "say \"hi\""}}),
              EndsWith(" a=\"\" b=\"x y\" c=\"k=v\" d=\"say \\\"hi\\\"\"\n"));
}

TEST(TextLogTest, StaysOneLineWithoutControlCharacters) {
  std::string line = Logged(false, "a\nb\x1b[31m", {{"k", std::string("x\r\n\0y\x9b", 6)}});
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  for (char c : line.substr(0, line.size() - 1)) EXPECT_TRUE(c >= ' ' && c < 0x7f) << line;
  EXPECT_THAT(line, HasSubstr("a\\nb\\033[31m"));
}

TEST(TextLogTest, BracesAndPercentsAreJustText) {
  EXPECT_THAT(Logged(false, "{} %v %s {0}", {{"k", "{}%d"}}), HasSubstr("{} %v %s {0} k={}%d\n"));
}

TEST(JsonLogTest, IsOneObjectPerLine) {
  EXPECT_THAT(Logged(true, "trainer0 joined", {{"worker", "trainer0"}, {"rank", 3}}),
              MatchesRegex("\\{\"time\":\"[0-9]{4}-[0-9-]{5}T[0-9:.]{12}Z\",\"level\":\"info\","
                           "\"event\":\"event_name\",\"message\":\"trainer0 joined\","
                           "\"worker\":\"trainer0\",\"rank\":\"3\"\\}\n"));
}

TEST(JsonLogTest, EscapesQuotesBackslashesAndControls) {
  EXPECT_THAT(Logged(true, std::string("a\"b\\c\n\t\0\x1f", 9), {}),
              HasSubstr("\"message\":\"a\\\"b\\\\c\\u000a\\u0009\\u0000\\u001f\"}"));
  EXPECT_THAT(Logged(true, "m", {{"k\"", "v\""}}), HasSubstr("\"k\\\"\":\"v\\\"\""));
}

TEST(JsonLogTest, KeepsUtf8) {
  EXPECT_THAT(Logged(true,
                     "Gr\xc3\xbc\xc3\x9f"
                     "e \xe2\x82\xac \xf0\x9f\x98\x80 \x7f",
                     {}),
              HasSubstr("Gr\xc3\xbc\xc3\x9f"
                        "e \xe2\x82\xac \xf0\x9f\x98\x80 \x7f"));
}

TEST(JsonLogTest, ReplacesWhatIsNotUtf8) {
  const std::pair<std::string, std::string> cases[] = {
      {"\xff", "\\ufffd"},
      {"\x80", "\\ufffd"},
      {"a\xc3", "a\\ufffd"},                                 // truncated
      {"\xc3(", "\\ufffd("},                                 // no continuation byte
      {"\xc0\xaf", "\\ufffd\\ufffd"},                        // overlong
      {"\xe0\x80\xaf", "\\ufffd\\ufffd\\ufffd"},             // overlong
      {"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"},             // a surrogate
      {"\xf0\x80\x80\xaf", "\\ufffd\\ufffd\\ufffd\\ufffd"},  // overlong
      {"\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"},  // beyond U+10FFFF
      {"\xe2\x82", "\\ufffd\\ufffd"},
  };
  for (const auto& [bytes, expected] : cases) {
    EXPECT_THAT(Logged(true, bytes, {}), HasSubstr("\"message\":\"" + expected + "\"}"));
  }
}

TEST(LoggerTest, DropsWhatIsBelowItsLevel) {
  std::ostringstream out;
  auto logger = NewStreamLogger(out, LogLevel::kWarning);
  EXPECT_FALSE(logger->Enabled(LogLevel::kInfo));
  EXPECT_TRUE(logger->Enabled(LogLevel::kWarning));
  logger->Log(LogLevel::kDebug, "e", "m");
  logger->Log(LogLevel::kInfo, "e", "m");
  EXPECT_EQ(out.str(), "");
  logger->Log(LogLevel::kWarning, "e", "first");
  logger->Log(LogLevel::kError, "e", "second");
  EXPECT_THAT(out.str(), HasSubstr("warning e  first\n"));
  EXPECT_THAT(out.str(), HasSubstr("error   e  second\n"));
}

TEST(LoggerTest, OffIsNotALevelToLogAt) {
  std::ostringstream out;
  for (LogLevel least : {LogLevel::kDebug, LogLevel::kOff}) {
    auto logger = NewStreamLogger(out, least);
    EXPECT_FALSE(logger->Enabled(LogLevel::kOff));
    logger->Log(LogLevel::kOff, "e", "m");
  }
  NewStreamLogger(out, LogLevel::kOff)->Log(LogLevel::kError, "e", "m");
  EXPECT_EQ(out.str(), "");
}

TEST(LoggerTest, NullLoggerDropsEverything) {
  auto logger = NewNullLogger();
  EXPECT_FALSE(logger->Enabled(LogLevel::kError));
  logger->Log(LogLevel::kError, "e", "m", {{"k", 1}});
}

TEST(LoggerTest, StderrLoggerWritesToStandardError) {
  testing::internal::CaptureStderr();
  NewStderrLogger(LogLevel::kInfo)->Log(LogLevel::kInfo, "started", "up", {{"port", 7071}});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("info    started  up port=7071\n"));
}

TEST(LoggerTest, LinesOfManyThreadsDoNotMix) {
  std::ostringstream out;
  auto logger = NewStreamLogger(out, LogLevel::kDebug, true);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 200; ++j) logger->Log(LogLevel::kInfo, "e", "m", {{"k", j}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> lines = absl::StrSplit(out.str(), '\n');
  ASSERT_EQ(lines.size(), 801u);
  lines.pop_back();
  for (const std::string& line : lines) {
    EXPECT_THAT(line, MatchesRegex("\\{\"time\".*\"event\":\"e\",\"message\":\"m\",\"k\":.*\\}"));
    EXPECT_EQ(line.find("time", 5), std::string::npos);
  }
}

TEST(ParseLogLevelTest, KnowsTheFiveNamesOnly) {
  LogLevel level = LogLevel::kOff;
  EXPECT_TRUE(ParseLogLevel("debug", &level));
  EXPECT_EQ(level, LogLevel::kDebug);
  EXPECT_TRUE(ParseLogLevel("info", &level));
  EXPECT_EQ(level, LogLevel::kInfo);
  EXPECT_TRUE(ParseLogLevel("warning", &level));
  EXPECT_EQ(level, LogLevel::kWarning);
  EXPECT_TRUE(ParseLogLevel("error", &level));
  EXPECT_EQ(level, LogLevel::kError);
  EXPECT_TRUE(ParseLogLevel("off", &level));
  EXPECT_EQ(level, LogLevel::kOff);
  for (const char* bad : {"", "INFO", "warn", "info ", "trace"}) {
    level = LogLevel::kInfo;
    EXPECT_FALSE(ParseLogLevel(bad, &level)) << bad;
    EXPECT_EQ(level, LogLevel::kInfo);
  }
}

}  // namespace
}  // namespace psd
