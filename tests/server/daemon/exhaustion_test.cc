#include "server/daemon/exhaustion.h"

#include <cstddef>
#include <memory>

#include "gtest/gtest.h"

namespace psd::server {
namespace {

// Nothing catches what is thrown here, as in the threads of libraries.
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

}  // namespace
}  // namespace psd::server
