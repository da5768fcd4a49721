#include "tools/cli/exit_code.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace psd::cli {
namespace {

constexpr char kPayload[] = "psctl/exit_code";

}  // namespace

absl::Status WithExitCode(absl::Status status, int code) {
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(code)));
  return status;
}

int ExitCodeOf(const absl::Status& failure) {
  const auto payload = failure.GetPayload(kPayload);
  int code = 0;
  return payload.has_value() && absl::SimpleAtoi(std::string(*payload), &code) ? code
                                                                               : kExitFailure;
}

}  // namespace psd::cli
