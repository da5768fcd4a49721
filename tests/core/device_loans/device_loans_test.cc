// The log lines of a worker that cannot share memory of a device.

#include "core/device_loans/device_loans.h"

#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::device_loans {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A peer whose process the system does not show has another name for each connection.
TEST(DeviceLoansLogTest, AReasonWhyNothingIsPassedIsLoggedOnceForAllConnections) {
  std::ostringstream log;
  const auto loans = DeviceLoans::Create(1, {}, NewStreamLogger(log, LogLevel::kInfo));
  const absl::Status hidden = absl::UnavailableError("its process is not shown here");
  for (int connection = 1; connection <= 3; ++connection)
    loans->OnNotPassed(absl::StrCat("process 0, connection ", connection), hidden);
  EXPECT_THAT(log.str(), AllOf(HasSubstr("device_memory_not_shared"), HasSubstr("connection 1"),
                               HasSubstr("its process is not shown here")));
  EXPECT_THAT(log.str(), Not(HasSubstr("connection 2")));
  loans->OnNotPassed("process 7", absl::UnavailableError("another reason"));
  EXPECT_THAT(log.str(), HasSubstr("another reason"));
}

}  // namespace
}  // namespace psd::device_loans
