#include "server/daemon/exhaustion.h"

#include <signal.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "gtest/gtest.h"

namespace psd::server {
namespace {

// Nothing catches an exception from here, as in the threads of libraries.
void AskFor(size_t bytes) noexcept {
  auto memory = std::make_unique<char[]>(bytes);
  memory[bytes - 1] = 1;
}

TEST(ExhaustionDeathTest, SaysHowMuchMemoryWasAskedForAndTheLimits) {
  EXPECT_EXIT(
      {
        ExitWhenExhausted(5);
        AskFor(size_t{1} << 60);
      },
      ::testing::ExitedWithCode(5),
      "psd: the system refuses 1152921504606846976 bytes of memory at once; .*RLIMIT_AS");
}

void AbortWithSpaceFor(rlim_t bytes) {
  const rlimit space = {bytes, bytes};
  setrlimit(RLIMIT_AS, &space);
  std::abort();
}

TEST(ExhaustionDeathTest, AnAbortWithoutMemoryIsAReasonAndAnyOtherStaysOne) {
  EXPECT_EXIT(
      {
        ExitWhenExhausted(5);
        AbortWithSpaceFor(4096);
      },
      ::testing::ExitedWithCode(5), "psd: the system refuses memory; .*address space 4096 bytes");
  EXPECT_EXIT(
      {
        ExitWhenExhausted(5);
        AbortWithSpaceFor(RLIM_INFINITY);
      },
      ::testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace psd::server
