#include "server/daemon/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/daemon/config_file.h"

namespace psd::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<DaemonConfig> Read(absl::string_view text) {
  ConfigBuilder builder;
  AddConfigText("psd.yaml", text, builder);
  return builder.Build();
}

std::string ProblemsOf(absl::string_view text) {
  absl::StatusOr<DaemonConfig> config = Read(text);
  EXPECT_FALSE(config.ok()) << text;
  return config.ok() ? "" : std::string(config.status().message());
}

TEST(Config, ReadsEveryField) {
  auto config = Read(R"(
name: owner3
listen: "0.0.0.0:9000"   # everywhere
advertise: owner3.example
insecure: true
shared_memory: false
shared_memory_folder: /run/psd
registrar: owner0=10.0.0.5:7071
memory_budget: 4GiB
daemons_on_host: 3
devices: emu:1
threads: 8
max_queued_functions: 77
lease: 2s
retry_window: 1m30s
drain_timeout: 500ms
log_level: warning
log_json: true
)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->name, "owner3");
  EXPECT_EQ(config->listen, "0.0.0.0:9000");
  EXPECT_EQ(config->advertise, "owner3.example");
  EXPECT_TRUE(config->insecure);
  EXPECT_FALSE(config->shared_memory);
  EXPECT_EQ(config->shared_memory_folder, "/run/psd");
  EXPECT_EQ(config->registrar_name, "owner0");
  EXPECT_EQ(config->registrar_address, "10.0.0.5:7071");
  EXPECT_FALSE(config->IsRegistrar());
  EXPECT_FALSE(config->registrar_only);
  EXPECT_EQ(config->memory_budget_bytes, size_t{4} << 30);
  EXPECT_EQ(config->daemons_on_host, 3);
  EXPECT_EQ(config->devices.size(), 1u);
  EXPECT_EQ(config->threads, 8);
  EXPECT_EQ(config->max_queued_functions, 77);
  EXPECT_EQ(config->lease, absl::Seconds(2));
  EXPECT_EQ(config->retry_window, absl::Seconds(90));
  EXPECT_EQ(config->drain_timeout, absl::Milliseconds(500));
  EXPECT_EQ(config->log_level, LogLevel::kWarning);
  EXPECT_TRUE(config->log_json);
}

TEST(Config, ARegistrarWithoutValuesIsNoOwner) {
  auto config = Read("{name: registrar, registrar_only: true, owners: 'owner0,owner1'}");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->registrar_only);
  EXPECT_TRUE(config->IsRegistrar());
  EXPECT_THAT(ProblemsOf("name: a\nregistrar_only: true\ndevices: emu:0"),
              HasSubstr("psd.yaml:2: registrar_only: emu:0 would host nothing then"));
  EXPECT_THAT(ProblemsOf("name: a\nregistrar_only: true\nowners: a,b"),
              HasSubstr("psd.yaml:2: registrar_only: 'a' is then no owner of the job"));
  EXPECT_THAT(ProblemsOf("name: a\nregistrar: b=c:1\nregistrar_only: true"),
              HasSubstr("psd.yaml:3: registrar_only: the registrar is 'b'"));
}

TEST(Config, PrintsWhatReadsBack) {
  auto config = Read(
      "{name: 'null', listen: '[::1]:0', memory_budget: 3MiB, lease: 1500ms, registrar: 'b=c:1'}");
  ASSERT_TRUE(config.ok()) << config.status();
  const std::string text = FormatConfig(*config);
  auto again = Read(text);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(FormatConfig(*again), text);
  EXPECT_EQ(again->lease, absl::Milliseconds(1500));
  EXPECT_EQ(again->memory_budget_bytes, size_t{3} << 20);
  EXPECT_THAT(text, HasSubstr("memory_budget: 3MiB\n"));
}

TEST(Config, EveryFieldPrintsItsDefaultSoThatItReadsBack) {
  for (const ConfigField& field : ConfigFields()) {
    if (field.name == "name") continue;  // it has no default
    DaemonConfig config;
    const std::string text = field.print(DaemonConfig{});
    EXPECT_TRUE(field.parse(text, config).ok()) << field.name << ": " << text;
    EXPECT_EQ(field.print(config), text);
    EXPECT_FALSE(field.help.empty());
    EXPECT_FALSE(field.range.empty());
  }
}

TEST(Config, TellsAllProblemsAtOnceWithTheirLines) {
  const std::string problems = ProblemsOf(
      "name: owner 0\n"
      "lisen: 127.0.0.1:1\n"
      "threads: 0\n"
      "lease: 10\n"
      "memory_budget: 5 parsecs\n"
      "log_level: loud\n"
      "insecure: yes\n"
      "registrar: owner0\n"
      "frobnicate: 1\n");
  EXPECT_THAT(problems, HasSubstr("psd.yaml:1: name: expected 1 to 127 characters"));
  EXPECT_THAT(problems, HasSubstr("psd.yaml:2: unknown key 'lisen'; did you mean 'listen'?"));
  EXPECT_THAT(problems, HasSubstr("psd.yaml:3: threads: expected a whole number from 1 to 1024"));
  EXPECT_THAT(problems, HasSubstr("psd.yaml:4: lease: expected a time with its unit"));
  EXPECT_THAT(problems, HasSubstr("psd.yaml:5: memory_budget: expected a size"));
  EXPECT_THAT(problems, HasSubstr("psd.yaml:6: log_level: expected debug, info"));
  EXPECT_THAT(problems, HasSubstr("psd.yaml:7: insecure: expected true or false, got 'yes'"));
  EXPECT_THAT(problems, HasSubstr("psd.yaml:8: registrar: expected name=host:port"));
  EXPECT_THAT(problems, ::testing::EndsWith("psd.yaml:9: unknown key 'frobnicate'"));
  EXPECT_THAT(problems, Not(HasSubstr("missing"))) << "the name was given, if badly";
}

TEST(Config, MissingNameSaysWhatToWrite) {
  EXPECT_THAT(ProblemsOf(""), HasSubstr("--name owner0"));
  EXPECT_THAT(ProblemsOf("# nothing but a comment\n"), HasSubstr("name: missing"));
}

TEST(Config, TheCheckpointRootIsAFolderThatCanBeWritten) {
  const std::string dir = ::testing::TempDir();
  auto config = Read("name: a\ncheckpoint_root: " + dir + "\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->checkpoint_root, dir);
  EXPECT_TRUE(Read(FormatConfig(*config)).ok());
  config->checkpoint_root = "/it's";
  EXPECT_THAT(FormatConfig(*config), HasSubstr("checkpoint_root: '/it''s'\n"));
  EXPECT_THAT(ProblemsOf("name: a\ncheckpoint_root: saves\n"),
              HasSubstr("psd.yaml:2: checkpoint_root: expected an absolute path, got 'saves'"));
  EXPECT_THAT(ProblemsOf("name: a\ncheckpoint_root: " + dir + "/none\n"),
              HasSubstr("psd.yaml:2: checkpoint_root: cannot find " + dir + "/none"));
  std::ofstream(dir + "/file") << "x";
  EXPECT_THAT(ProblemsOf("name: a\ncheckpoint_root: " + dir + "/file\n"),
              HasSubstr("/file is not a folder; name a folder that this owner may write to"));
}

TEST(Config, TheFolderForSharedMemoryHasAnAbsolutePath) {
  EXPECT_THAT(ProblemsOf("name: a\nshared_memory_folder: run/psd\n"),
              HasSubstr("psd.yaml:2: shared_memory_folder: a folder for shared memory is an "
                        "absolute path of at most 64 bytes, which 'run/psd' is not"));
  EXPECT_THAT(ProblemsOf("name: a\nshared_memory_folder: /" + std::string(64, 'a') + "\n"),
              HasSubstr("psd.yaml:2: shared_memory_folder: "));
  EXPECT_TRUE(Read("name: a\nshared_memory_folder: /" + std::string(63, 'a') + "\n").ok());
}

TEST(Config, BeyondLoopbackOnlyWhenSaid) {
  for (const char* address : {"0.0.0.0:7071", "10.1.2.3:1", "[::]:5", "host.example:7071",
                              "127.0.0.1.example:7", "localhost.example:7"}) {
    const std::string lines = absl::StrCat("name: a\nlisten: '", address, "'\n");
    EXPECT_THAT(ProblemsOf(lines), HasSubstr("psd.yaml:2: listen: ")) << address;
    EXPECT_THAT(ProblemsOf(lines), HasSubstr("--insecure"));
    EXPECT_TRUE(Read(lines + "insecure: true\nadvertise: a.example\n").ok()) << address;
  }
  for (const char* address : {"127.0.0.1:0", "127.8.9.1:65535", "localhost:7071", "[::1]:7071"})
    EXPECT_TRUE(Read(absl::StrCat("name: a\nlisten: '", address, "'\n")).ok()) << address;
}

TEST(Config, AllInterfacesNeedAnAddressThatOthersCanDial) {
  const std::string lines = "name: a\ninsecure: true\nlisten: '0.0.0.0:7071'\n";
  EXPECT_THAT(ProblemsOf(lines), HasSubstr("psd.yaml:3: listen: '0.0.0.0:7071' is all interfaces"));
  EXPECT_THAT(ProblemsOf(lines), HasSubstr("advertise: HOST"));
  auto config = Read(lines + "advertise: a.psd\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->advertise, "a.psd");
  EXPECT_TRUE(Read(FormatConfig(*config)).ok());
  EXPECT_THAT(ProblemsOf(lines + "advertise: '[::]:7071'\n"),
              HasSubstr("psd.yaml:4: advertise: expected an address that others can dial"));
}

TEST(Config, OwnersAreNamesAndThisOneAndTheRegistrarAreAmongThem) {
  auto config = Read("name: b\nregistrar: a=h:1\nowners: a,b,c\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->owners, ::testing::ElementsAre("a", "b", "c"));
  EXPECT_TRUE(Read(FormatConfig(*config)).ok());
  EXPECT_THAT(ProblemsOf("name: d\nregistrar: a=h:1\nowners: b,c\n"),
              ::testing::AllOf(HasSubstr("psd.yaml:3: owners: 'd' is an owner of the job too"),
                               HasSubstr("owners: 'a' is an owner of the job too")));
  EXPECT_THAT(ProblemsOf("name: a\nowners: a,b c\n"),
              HasSubstr("psd.yaml:2: owners: expected 1 to 127 characters"));
}

TEST(Config, DevicesHaveNamesAndBudgets) {
  using Kind = DeviceConfig::Kind;
  auto config = Read("name: a\ndevices: emu:0=2GiB,cuda:12,emu:63=1048577\n");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->devices.size(), 3u);
  EXPECT_EQ(config->devices[0].kind, Kind::kEmulated);
  EXPECT_EQ(config->devices[0].name(), "emu:0");
  EXPECT_EQ(config->devices[0].budget_bytes, size_t{2} << 30);
  EXPECT_EQ(config->devices[1].kind, Kind::kCuda);
  EXPECT_EQ(config->devices[1].name(), "cuda:12");
  EXPECT_EQ(config->devices[1].budget_bytes, 0u);
  EXPECT_EQ(config->devices[2].name(), "emu:63");
  EXPECT_EQ(config->devices[2].budget_bytes, 1048577u);
  const std::string text = FormatConfig(*config);
  EXPECT_THAT(text, HasSubstr("devices: 'emu:0=2GiB,cuda:12,emu:63=1048577'\n"));
  auto again = Read(text);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(FormatConfig(*again), text);
  EXPECT_TRUE(Read("name: a\ndevices: ''\n")->devices.empty());
}

TEST(Config, RefusesDevicesThatItDoesNotKnowOrThatAreNamedTwice) {
  for (const char* name : {"cpu", "auto", "gpu:0", "emu", "emu:", "emu:x", "emu:-1", "emu:01",
                           "emu: 1", "cuda:64", "cuda:99999999999", "EMU:0", "=1GiB"}) {
    const absl::string_view device = name[0] == '=' ? "" : name;
    EXPECT_THAT(ProblemsOf(absl::StrCat("name: a\ndevices: 'emu:3,", name, "'\n")),
                HasSubstr(absl::StrCat("psd.yaml:2: devices: expected a device, emu:N or cuda:N "
                                       "with N from 0 to 63, got '",
                                       device, "'")))
        << name;
  }
  EXPECT_THAT(ProblemsOf("name: a\ndevices: 'emu:0,'\n"), HasSubstr("got ''"));
  EXPECT_THAT(ProblemsOf("name: a\ndevices: 'emu:0=1GiB,cuda:0,emu:0=2GiB'\n"),
              HasSubstr("psd.yaml:2: devices: emu:0 is named twice; name each device once"));
}

TEST(Config, RefusesBudgetsOfDevicesBeyondRangeOrReason) {
  for (const char* budget : {"", "0", "1048575", "1GB", "-1", "2TiB", "1GiB=1GiB"}) {
    EXPECT_THAT(ProblemsOf(absl::StrCat("name: a\ndevices: 'emu:0,cuda:1=", budget, "'\n")),
                HasSubstr(absl::StrCat("psd.yaml:2: devices: expected a memory budget for cuda:1 "
                                       "from 1MiB to 1TiB, such as 2GiB, got '",
                                       budget, "'")))
        << budget;
  }
}

TEST(Config, RefusesSizesBeyondRangeOrReason) {
  for (const char* size : {"-1", "1.5GiB", "GiB", "99999999999999999999", "18446744073709551615TiB",
                           "1025TiB", "1GB", "+5", "0x10"})
    EXPECT_THAT(ProblemsOf(absl::StrCat("name: a\nmemory_budget: '", size, "'\n")),
                HasSubstr("psd.yaml:2: memory_budget: expected a size"))
        << size;
}

TEST(Config, FieldsThatDoNotFitTogether) {
  EXPECT_THAT(ProblemsOf("name: a\nlease: 40s\n"), HasSubstr("shorter than the lease"));
}

TEST(Config, StructureThatIsNoListOfFields) {
  EXPECT_THAT(ProblemsOf("- name\n- a\n"), HasSubstr("psd.yaml:1: expected 'key: value' lines"));
  EXPECT_THAT(ProblemsOf("just text"), HasSubstr("expected 'key: value' lines"));
  EXPECT_THAT(ProblemsOf("name: a\nlisten:\n  host: b\n"),
              HasSubstr("expected a single value, got a mapping"));
  EXPECT_THAT(ProblemsOf("name: a\nthreads: [1, 2]\nleas: 1s\n"),
              HasSubstr("psd.yaml:3: unknown key 'leas'; did you mean 'lease'?"));
  EXPECT_THAT(ProblemsOf("name: a\nname: b\n"),
              HasSubstr("psd.yaml:2: name: set twice; the first is at psd.yaml:1"));
  EXPECT_THAT(ProblemsOf("name: a\n---\nname: b\n"), HasSubstr("second document"));
  EXPECT_THAT(ProblemsOf("? [a, b]\n: c\nname: d\n"), HasSubstr("expected a single value"));
  EXPECT_THAT(ProblemsOf("name: a\n  threads: 3\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(ProblemsOf("name: !!binary aGk=\n"), HasSubstr("tags"));
}

TEST(Config, HostileTexts) {
  EXPECT_THAT(ProblemsOf("name: &a b\nlisten: *a\n"), HasSubstr("anchors"));
  EXPECT_THAT(ProblemsOf("name: &a b\nlisten: *a\n"), HasSubstr("psd.yaml:2: aliases"));
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c <= 'z'; ++c) {
    const char before = static_cast<char>(c - 1);
    absl::StrAppend(&bomb, std::string(1, c), ": &", std::string(1, c), " [");
    for (int i = 0; i < 9; ++i) absl::StrAppend(&bomb, "*", std::string(1, before), ", ");
    absl::StrAppend(&bomb, "]\n");
  }
  EXPECT_THAT(ProblemsOf(bomb), HasSubstr("aliases"));
  EXPECT_FALSE(Read(std::string(30'000, '[')).ok());
  EXPECT_FALSE(Read("a: " + std::string(30'000, '{')).ok());
  EXPECT_FALSE(Read(std::string(30'000, '-') + " a").ok());
  EXPECT_THAT(ProblemsOf(std::string(kMaxConfigBytes + 1, '#')), HasSubstr("too many"));
  EXPECT_THAT(ProblemsOf(absl::string_view("name: a\0b", 9)), HasSubstr("not a text file"));
  EXPECT_THAT(ProblemsOf("\x7f"
                         "ELF\x02\x01\x01"),
              HasSubstr("not a text file"));
  // A message shows only as much of a value as fits on a line, and no control characters.
  const std::string long_name = ProblemsOf("name: '" + std::string(5000, ' ') + "'\n");
  EXPECT_LT(long_name.size(), 300u);
}

TEST(Config, LaterSourcesWin) {
  ConfigBuilder builder;
  AddConfigText("psd.yaml", "name: a\nthreads: 2\n", builder);
  builder.Set("--threads", "threads", "3");
  auto config = builder.Build();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->threads, 3);
  EXPECT_TRUE(builder.IsSet("threads"));
  EXPECT_FALSE(builder.IsSet("lease"));
}

TEST(Config, FilesThatCannotBeRead) {
  ConfigBuilder builder;
  AddConfigFile("/nonexistent/psd.yaml", builder);
  AddConfigFile("/", builder);
  auto config = builder.Build();
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(std::string(config.status().message()),
              HasSubstr("/nonexistent/psd.yaml: cannot be read: No such file or directory"));
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("\n/: cannot be read"));
}

}  // namespace
}  // namespace psd::server
