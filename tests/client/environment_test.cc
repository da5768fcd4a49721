// Worker options from the environment that psctl run and other launchers set.

#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

const Variables kRank2{{"PSD_NAME", "rank2"},
                       {"PSD_RANK", "2"},
                       {"PSD_GROUP_SIZE", "4"},
                       {"PSD_REGISTRAR", "registrar=127.0.0.1:4711"}};

absl::StatusOr<WorkerOptions> Read(const Variables& variables) {
  for (const char* name : {"PSD_NAME", "PSD_RANK", "PSD_GROUP_SIZE", "PSD_OWNERS", "PSD_REGISTRAR",
                           "PSD_SHARED_MEMORY_FOLDER"})
    ::unsetenv(name);
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  return WorkerOptions::FromEnvironment();
}

Variables With(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables Without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

// Expects an error that names the variable, its value and what to do.
void ExpectRefused(const std::string& variable, const std::string& value,
                   const Variables& others = kRank2) {
  const absl::Status refused = Read(With(others, variable, value)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << variable << "=" << value;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat(variable, " is '")));
  EXPECT_LT(refused.message().size(), 400u) << "a hostile value is cut";
  ASSERT_TRUE(GetDetail(refused).has_value()) << refused;
  EXPECT_FALSE(GetDetail(refused)->remedy.empty()) << refused;
}

TEST(Environment, ARankOfPsctlRun) {
  const WorkerOptions options = Must(Read(kRank2));
  EXPECT_EQ(options.name, "rank2");
  EXPECT_EQ(options.group_rank, 2u);
  EXPECT_EQ(options.group_size, 4u);
  ASSERT_EQ(options.owners.size(), 1u);
  EXPECT_EQ(options.owners[0].name, "registrar");
  EXPECT_EQ(options.owners[0].address, "127.0.0.1:4711");
}

TEST(Environment, OwnersAndARegistrar) {
  const Variables two =
      With(kRank2, "PSD_OWNERS", "owner0=10.0.0.5:7071,owner1=owner1.example:7072");
  const WorkerOptions both = Must(Read(two));
  ASSERT_EQ(both.owners.size(), 3u);
  EXPECT_EQ(both.owners[0].name, "registrar");
  EXPECT_EQ(both.owners[2].address, "owner1.example:7072");
  EXPECT_EQ(Must(Read(Without(two, "PSD_REGISTRAR"))).owners.size(), 2u);
  EXPECT_EQ(Must(Read(With(two, "PSD_REGISTRAR", "owner0=10.0.0.5:7071"))).owners.size(), 2u)
      << "the registrar is an owner too";
  ExpectRefused("PSD_REGISTRAR", "owner0=10.0.0.6:7071", two);
}

TEST(Environment, AFolderForSharedMemory) {
  EXPECT_EQ(Must(Read(kRank2)).shared_memory_folder, "");
  const Variables folder = With(kRank2, "PSD_SHARED_MEMORY_FOLDER", "/run/psd");
  EXPECT_EQ(Must(Read(folder)).shared_memory_folder, "/run/psd");
  for (const std::string& bad :
       {std::string("run/psd"), "/" + std::string(1000, 'a'), std::string("/run/\npsd")})
    ExpectRefused("PSD_SHARED_MEMORY_FOLDER", bad);
}

TEST(Environment, WithoutAGroup) {
  const WorkerOptions options = Must(Read(Without(Without(kRank2, "PSD_RANK"), "PSD_GROUP_SIZE")));
  EXPECT_EQ(options.group_size, 0u);
  EXPECT_FALSE(options.group_rank.has_value());
}

TEST(Environment, WhatIsNotSetIsNamed) {
  const auto missing = [](const Variables& variables) {
    const absl::Status status = Read(variables).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(GetDetail(status)->remedy), HasSubstr("set "));
    return std::string(status.message());
  };
  EXPECT_THAT(missing(Without(kRank2, "PSD_NAME")), HasSubstr("PSD_NAME is not set"));
  EXPECT_THAT(missing(Without(kRank2, "PSD_REGISTRAR")),
              HasSubstr("PSD_OWNERS and PSD_REGISTRAR are not set"));
  EXPECT_THAT(missing(Without(kRank2, "PSD_GROUP_SIZE")),
              HasSubstr("PSD_RANK is '2', but PSD_GROUP_SIZE is not set"));
}

TEST(Environment, HostileValuesAreRefused) {
  const std::string huge(1'000'000, '9');
  for (const std::string& value :
       {std::string(), std::string("a b"), std::string("a=b"), std::string("\033[2J"), huge})
    ExpectRefused("PSD_NAME", value);
  for (const std::string& value :
       {std::string(), std::string("4"), std::string("-1"), std::string("+1"), std::string(" 1"),
        std::string("0x1"), std::string("1.0"), std::string("two"), huge})
    ExpectRefused("PSD_RANK", value);
  for (const std::string& value :
       {std::string(), std::string("0"), std::string("-4"), std::string("65537"),
        std::string("4294967300"), std::string("4 "), huge})
    ExpectRefused("PSD_GROUP_SIZE", value);
  for (const std::string& value :
       {std::string(), std::string("registrar"), std::string("=127.0.0.1:1"),
        std::string("registrar=127.0.0.1"), std::string("registrar=127.0.0.1:0"),
        std::string("registrar=127.0.0.1:99999"), std::string("r=127.0.0.1:1,s=127.0.0.1:2"),
        std::string("\n=\n"), huge})
    ExpectRefused("PSD_REGISTRAR", value);
  for (const std::string& value : {std::string(), std::string(","), std::string("a=127.0.0.1:1,"),
                                   std::string("a=127.0.0.1:1,a=127.0.0.1:2"),
                                   std::string("a=127.0.0.1:1 b=127.0.0.1:2"), huge})
    ExpectRefused("PSD_OWNERS", value);
}

TEST(Environment, ARankOutsideOfTheGroupDoesNotStart) {
  WorkerOptions options = Must(Read(kRank2));
  options.group_rank = 4;
  const absl::Status refused = Worker::Start(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("group_rank is 4 in a group of 4"));
}

}  // namespace
}  // namespace psd
