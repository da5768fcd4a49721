#include "core/base/worker_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/quoted.h"

namespace psd {

absl::Status CheckWorkerName(absl::string_view name) {
  const bool legal = !name.empty() && name.size() <= kMaxWorkerNameBytes &&
                     std::all_of(name.begin(), name.end(), [](char c) {
                       return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' ||
                              c == ':' || c == '-';
                     });
  if (legal) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected ", kWorkerNameRule,
                                                 " as a worker's name, got ", Quoted(name), " (",
                                                 name.size(), " bytes)"));
}

}  // namespace psd
