#include "core/base/status.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace psd {
namespace {

constexpr absl::string_view kDetailUrl = "psd.v1/error_detail";

// Fields are joined by the unit separator, which is stripped from the texts themselves.
constexpr char kSeparator = '\x1f';

std::string Clean(absl::string_view text) {
  std::string clean(text);
  for (char& c : clean) {
    if (c == kSeparator) c = ' ';
  }
  return clean;
}

}  // namespace

absl::Status WithDetail(absl::Status status, const ErrorDetail& detail) {
  if (status.ok()) return status;
  std::string encoded =
      absl::StrCat(Clean(detail.worker), std::string(1, kSeparator), Clean(detail.object),
                   std::string(1, kSeparator), Clean(detail.remedy), std::string(1, kSeparator),
                   detail.fate_unknown ? "1" : "0");
  status.SetPayload(kDetailUrl, absl::Cord(encoded));
  return status;
}

std::optional<ErrorDetail> GetDetail(const absl::Status& status) {
  auto payload = status.GetPayload(kDetailUrl);
  if (!payload) return std::nullopt;
  std::string bytes(*payload);
  // Four separators are one too many; a peer's bytes may hold millions.
  std::vector<std::string> fields = absl::StrSplit(bytes, absl::MaxSplits(kSeparator, 4));
  if (fields.size() != 4 || (fields[3] != "0" && fields[3] != "1")) return std::nullopt;
  return ErrorDetail{fields[0], fields[1], fields[2], fields[3] == "1"};
}

absl::Status Annotate(const absl::Status& status, absl::string_view prefix) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(prefix, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

namespace internal {

void CheckFailed(const char* file, int line, const char* condition, absl::string_view message) {
  std::fprintf(stderr, "%s:%d: internal error: %s does not hold: %.*s\n", file, line, condition,
               static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace internal
}  // namespace psd
