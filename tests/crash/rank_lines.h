#pragma once

// The lines by which ranks in processes of their own tell a test what happens.

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::crash {

inline void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Prints "error CODE WORKER". Returns WORKER, which the error names; "" if it names none.
inline std::string SayError(const absl::Status& error) {
  const auto detail = GetDetail(error);
  const std::string worker = detail.has_value() ? detail->worker : "";
  Say(absl::StrCat("error ", absl::StatusCodeToString(error.code()), " ", worker));
  std::fprintf(stderr, "%s\n", error.ToString().c_str());
  return worker;
}

}  // namespace psd::crash
