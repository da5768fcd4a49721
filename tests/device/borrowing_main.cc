// The main function of programs with the tests of borrowing_process_test.cc, which start their
// program again as a trainer.

#include <signal.h>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/device/borrowing_trainer.h"

int main(int count, char** arguments) {
  // A test that writes to a trainer which has ended gets an error, and the other tests still run.
  signal(SIGPIPE, SIG_IGN);
  if (count > 1 && absl::string_view(arguments[1]) == psd::testing::kBorrowingTrainer)
    return psd::testing::RunBorrowingTrainer(count, arguments);
  ::testing::InitGoogleMock(&count, arguments);
  return RUN_ALL_TESTS();
}
