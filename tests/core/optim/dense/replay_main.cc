// Replays the cases on its standard input, which have the format of
// tests/golden/optim/make_golden.py. Exits with 1 if one of them disagrees.

#include <cstdio>
#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "tests/core/optim/dense/golden_cases.h"

int main() {
  int count = 0, failed = 0;
  for (const auto& golden : psd::optim::ReadGoldenCases(std::cin)) {
    ++count;
    const absl::Status replayed = psd::optim::Replay(golden);
    if (replayed.ok()) continue;
    ++failed;
    std::printf("%s\n", std::string(replayed.message()).c_str());
  }
  std::printf("%d cases replayed, %d failed\n", count, failed);
  return count > 0 && failed == 0 ? 0 : 1;
}
