#include "tests/attack/memory_attack.h"

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "gtest/gtest.h"

ABSL_FLAG(int, rounds, 1, "how often each attack is made");
ABSL_FLAG(int, small, 2000, "how many small things an attack makes: sessions, contexts, values");

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  absl::ParseCommandLine(argc, argv);
  return RUN_ALL_TESTS();
}
