// Which cases of devices the program runs, and what it says of the others.

#include "bench/run_main.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The exit status of the program and what it wrote.
struct Ran {
  int status = 0;
  std::string out, err;
};

Ran RunBench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"bench", "--json", "--blocks=1"});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Ran ran;
  ran.status = RunMain(static_cast<int>(argv.size()), argv.data(), /*with_peer=*/false);
  ran.out = ::testing::internal::GetCapturedStdout();
  ran.err = ::testing::internal::GetCapturedStderr();
  return ran;
}

TEST(RunMain, WithoutTheDeviceEachCaseSaysSoInOneLine) {
  const Ran ran = RunBench({"--only=gpu_opt_*", "--devices=cuda:63"});
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, StartsWith("gpu_opt_sgd: not run: "));
  EXPECT_THAT(ran.err, HasSubstr("\ngpu_opt_small: not run: "));
  EXPECT_THAT(ran.err, HasSubstr("cuda:63"));
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 9);
}

TEST(RunMain, TooFewDevicesForACaseAreNamed) {
  const Ran ran = RunBench({"--only=gpu_allreduce", "--devices=emu:0"});
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(ran.err, "gpu_allreduce: not run: it needs 2 devices, and --devices names 1\n");
}

TEST(RunMain, EmulatedDevicesRunTheCases) {
  const Ran ran = RunBench({"--only=gpu_opt_small", "--devices=emu:0"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_THAT(ran.out, StartsWith("{\"case\": \"gpu_opt_small\", \"carrier\": \"none\""));
  EXPECT_EQ(ran.err, "");
}

TEST(RunMain, AFailingCaseIsAnError) {
  const Ran ran =
      RunBench({"--only=gpu_opt_adam", "--devices=emu:0=1MiB", "--only=gpu_pull_256MiB"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.out, StartsWith("{\"case\": \"gpu_opt_adam\""));
  EXPECT_THAT(ran.err, HasSubstr("gpu_pull_256MiB: RESOURCE_EXHAUSTED"));
}

}  // namespace
}  // namespace psd::bench
