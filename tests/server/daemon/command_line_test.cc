#include "server/daemon/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/daemon/config.h"

namespace psd::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string ProblemsOf(std::vector<const char*> arguments) {
  auto line = ParseCommandLine(arguments);
  EXPECT_FALSE(line.ok());
  return line.ok() ? "" : std::string(line.status().message());
}

TEST(CommandLine, BothWaysToGiveAValue) {
  auto line = ParseCommandLine({"--config=a.yaml", "--name", "owner0", "--drain-timeout=5s",
                                "--log_json", "--noinsecure", "--ready_fd", "3"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config_path, "a.yaml");
  EXPECT_EQ(line->ready_fd, 3);
  EXPECT_THAT(line->fields, ElementsAre(Pair("name", "owner0"), Pair("drain_timeout", "5s"),
                                        Pair("log_json", "true"), Pair("insecure", "false")));
}

TEST(CommandLine, Switches) {
  auto line = ParseCommandLine({"--dev", "--check-config", "-h", "--version=false"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_TRUE(line->dev);
  EXPECT_TRUE(line->check_config);
  EXPECT_TRUE(line->help);
  EXPECT_FALSE(line->version);
}

TEST(CommandLine, TellsAllProblemsAtOnce) {
  const std::string problems =
      ProblemsOf({"--lisen=127.0.0.1:1", "owner0", "--ready_fd=x", "--dev=maybe", "--", "--name"});
  EXPECT_THAT(problems, HasSubstr("--lisen: unknown flag; did you mean --listen?"));
  EXPECT_THAT(problems, HasSubstr("'owner0': unexpected argument"));
  EXPECT_THAT(problems, HasSubstr("--ready_fd: expected the number of an open file descriptor"));
  EXPECT_THAT(problems, HasSubstr("--dev: expected true or false, got 'maybe'"));
  EXPECT_THAT(problems, HasSubstr("'--': unexpected argument"));
  EXPECT_THAT(problems, HasSubstr("--name: the value is missing"));
}

TEST(CommandLine, UsageNamesEveryFieldAndExitCode) {
  const std::string usage = UsageText();
  for (const ConfigField& field : ConfigFields())
    EXPECT_THAT(usage, HasSubstr("--" + std::string(field.name) + " "));
  EXPECT_THAT(usage, HasSubstr("--ready_fd N"));
  EXPECT_THAT(usage, HasSubstr("\nExit codes:\n"));
  for (const char* code : {"0", "1", "2", "3", "4", "5", "6"})
    EXPECT_THAT(usage, HasSubstr("\n  " + std::string(code) + "  "));
}

}  // namespace
}  // namespace psd::server
