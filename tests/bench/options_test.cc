#include "bench/options.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Options, DefaultIsEveryCaseOnThisHost) {
  const auto options = ParseOptions({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(options->only, IsEmpty());
  EXPECT_FALSE(options->blocks.has_value());
  EXPECT_FALSE(options->json);
  EXPECT_THAT(options->environment.network.enter, IsEmpty());
  EXPECT_EQ(options->environment.network.host, "127.0.0.1");
  EXPECT_EQ(options->environment.network.delay, absl::ZeroDuration());
  ASSERT_EQ(options->devices.size(), 1u);
  EXPECT_EQ(options->devices[0].name(), "cuda:0");
}

TEST(Options, AStarStandsForTheRestOfTheNames) {
  const auto options = ParseOptions({"--only=step_small*", "--only", "call_empty"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(options->only, ElementsAre("step_small", "step_small_carried", "call_empty"));
}

TEST(Options, ValuesFollowFlagsWithOrWithoutAnEqualsSign) {
  const auto options =
      ParseOptions({"--json", "--only=call_empty", "--only", "pull_16MiB", "--blocks=3", "--enter",
                    "ssh -T far", "--host=10.0.0.5", "--delay", "10ms", "--daemon=/a=b",
                    "--carrier", "shm", "--floor=grpc", "--devices", "emu:1=2GiB,cuda:2"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->json);
  EXPECT_THAT(options->only, ElementsAre("call_empty", "pull_16MiB"));
  EXPECT_EQ(options->blocks, 3);
  EXPECT_THAT(options->environment.network.enter, ElementsAre("ssh", "-T", "far"));
  EXPECT_EQ(options->environment.network.host, "10.0.0.5");
  EXPECT_EQ(options->environment.network.delay, absl::Milliseconds(10));
  EXPECT_EQ(options->environment.daemon, "/a=b");
  EXPECT_EQ(options->environment.carrier, "shm");
  EXPECT_EQ(options->environment.floor, "grpc");
  ASSERT_EQ(options->devices.size(), 2u);
  EXPECT_EQ(options->devices[0].name(), "emu:1");
  EXPECT_EQ(options->devices[0].budget_bytes, size_t{2} << 30);
  EXPECT_EQ(options->devices[1].name(), "cuda:2");
}

TEST(Options, MistakesAreNamedWithTheirFlag) {
  const std::vector<std::pair<std::string, std::string>> mistakes = {
      {"--only=none", "unknown case 'none'; known: call_empty"},
      {"--only=gpu_x*", "unknown case 'gpu_x*'; known: call_empty"},
      {"--devices=gpu0", "gpu0"},
      {"--carrier=pigeon", "'pigeon' is none; grpc and shm are"},
      {"--floor=sea", "'sea' is none; tcp and grpc are"},
      {"--blocks=0", "'0' is no number from 1"},
      {"--delay=10", "'10' is no time, such as 10ms"},
      {"--delay=-1ms", "is no time"},
      {"--delay", "unknown or incomplete argument '--delay'"},
      {"--speed=1", "unknown or incomplete argument '--speed=1'"},
  };
  for (const auto& [argument, message] : mistakes) {
    const absl::Status status = ParseOptions({argument}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << argument;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_THAT(std::string(status.message()), HasSubstr(argument.substr(0, argument.find('='))));
  }
}

TEST(Options, HelpHasALineForEveryFlag) {
  for (const char* flag :
       {"--json", "--only CASE", "--carrier C", "--floor F", "--blocks N", "--devices LIST",
        "--daemon PATH", "--helper PATH", "--enter COMMAND", "--host IP", "--delay TIME"}) {
    EXPECT_THAT(OptionsHelp(), HasSubstr(flag));
  }
}

}  // namespace
}  // namespace psd::bench
