// Sealed memory where the system refuses one of the steps that it takes.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <iostream>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/sealed_memory.h"
#include "tests/core/base/refused_calls.h"

namespace psd {
namespace {

constexpr unsigned int kBytes = 12'288;

constexpr unsigned int kNoExecution = 8;  // MFD_NOEXEC_SEAL, which older headers do not name

// The calls that make sealed memory, by an argument that no other call of a test has.
constexpr RefusedCall kMake = {SYS_memfd_create, 1, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecution,
                               0};
constexpr RefusedCall kSetLength = {SYS_ftruncate, 1, kBytes, 0};
constexpr RefusedCall kAllocate = {SYS_fallocate, 2, 0, 0};
constexpr RefusedCall kMap = {SYS_mmap, 3, MAP_SHARED, 0};
constexpr RefusedCall kSeal = {SYS_fcntl, 1, F_ADD_SEALS, 0};

struct Refusal {
  const char* name;
  RefusedCall call;
  int error;
  const char* step;   // as the error names it
  const char* limit;  // and the limit
};
void PrintTo(const Refusal& refusal, std::ostream* out) {
  *out << refusal.name;
}

// Makes or maps sealed memory under the refusal, says what comes of it, and ends the process, with
// 0 if that is an error.
void MakeUnder(const RefusedCall& call) {
  if (!Refuse(call)) _exit(1);
  const absl::StatusOr<SealedMemory> made = MakeSealedMemory("psd-test", "a link", kBytes);
  std::cerr << made.status() << std::endl;
  _exit(made.ok() ? 2 : 0);
}
void MapUnder(const RefusedCall& call) {
  const absl::StatusOr<SealedMemory> made = MakeSealedMemory("psd-test", "a link", kBytes);
  if (!made.ok() || !Refuse(call)) _exit(1);
  const auto mapped = MapSealedMemory(made->fd, kBytes, "its rings");
  std::cerr << mapped.status() << std::endl;
  _exit(mapped.ok() ? 2 : 0);
}

RefusedCall With(RefusedCall call, int error) {
  call.error = error;
  return call;
}

class SealedMemoryDeathTest : public testing::Test {
 protected:
  SealedMemoryDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
class SealedMemoryStepDeathTest : public SealedMemoryDeathTest,
                                  public testing::WithParamInterface<Refusal> {};

TEST_P(SealedMemoryStepDeathTest, TheRefusedStepAndTheLimitAreNamed) {
  const Refusal& refusal = GetParam();
  EXPECT_EXIT(MakeUnder(With(refusal.call, refusal.error)), testing::ExitedWithCode(0),
              std::string("RESOURCE_EXHAUSTED: the system refuses 12288 bytes of shared memory for "
                          "a link .") +
                  refusal.step + ".: .*; limit: .*" + refusal.limit +
                  ".*turn shared memory off .shared_memory: false");
}

constexpr char kDescriptors[] = "RLIMIT_NOFILE.*ulimit -n";
constexpr char kFiles[] = "fs.file-max.*sysctl fs.file-max";
constexpr char kMemory[] = "RLIMIT_AS.*memory.max.*vm.max_map_count.*raise the one";
constexpr char kLength[] = "RLIMIT_FSIZE.*ulimit -f";
constexpr char kProfile[] = "seccomp profile.*allow memfd_create and fcntl.F_ADD_SEALS";

INSTANTIATE_TEST_SUITE_P(
    Steps, SealedMemoryStepDeathTest,
    testing::Values(Refusal{"MakeEMFILE", kMake, EMFILE, "memfd_create", kDescriptors},
                    Refusal{"MakeENFILE", kMake, ENFILE, "memfd_create", kFiles},
                    Refusal{"MakeENOMEM", kMake, ENOMEM, "memfd_create", kMemory},
                    Refusal{"MakeEPERM", kMake, EPERM, "memfd_create", kProfile},
                    Refusal{"MakeEACCES", kMake, EACCES, "memfd_create", kProfile},
                    Refusal{"MakeENOSYS", kMake, ENOSYS, "memfd_create", kProfile},
                    Refusal{"SetLengthEFBIG", kSetLength, EFBIG, "ftruncate", kLength},
                    Refusal{"MapENOMEM", kMap, ENOMEM, "mmap", kMemory},
                    Refusal{"AllocateENOSPC", kAllocate, ENOSPC, "fallocate", kMemory},
                    Refusal{"AllocateENOMEM", kAllocate, ENOMEM, "fallocate", kMemory},
                    Refusal{"SealEPERM", kSeal, EPERM, "F_ADD_SEALS", kProfile}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(SealedMemoryDeathTest, ASystemWithoutTheSealsSaysSo) {
  EXPECT_EXIT(MakeUnder(With(kSeal, EINVAL)), testing::ExitedWithCode(0),
              "UNIMPLEMENTED: this system cannot seal shared memory.*Linux 5.1");
}

TEST_F(SealedMemoryDeathTest, AMappingOfThePeersMemoryThatIsRefusedIsNamed) {
  EXPECT_EXIT(MapUnder(With(kMap, ENOMEM)), testing::ExitedWithCode(0),
              std::string("RESOURCE_EXHAUSTED: the system refuses 12288 bytes of shared memory for "
                          "its rings .mmap.: .*") +
                  kMemory);
}

}  // namespace
}  // namespace psd
