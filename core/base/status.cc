#include "core/base/status.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace psd {
namespace {

constexpr absl::string_view kDetailUrl = "psd.v1/error_detail";

// A detail is encoded as text that a printed status shows legibly: "worker=owner0|remedy=start
// it|fate=unknown". Empty fields are left out, and '|' inside a text becomes '/'.
constexpr char kSeparator = '|';
constexpr absl::string_view kWorker = "worker=";
constexpr absl::string_view kObject = "object=";
constexpr absl::string_view kRemedy = "remedy=";
constexpr absl::string_view kFateUnknown = "fate=unknown";

void AddField(absl::string_view name, absl::string_view text, std::string& encoded) {
  if (text.empty()) return;
  if (!encoded.empty()) encoded += kSeparator;
  absl::StrAppend(&encoded, name, absl::StrReplaceAll(text, {{"|", "/"}}));
}

}  // namespace

absl::Status WithDetail(absl::Status status, const ErrorDetail& detail) {
  if (status.ok()) return status;
  std::string encoded;
  AddField(kWorker, detail.worker, encoded);
  AddField(kObject, detail.object, encoded);
  AddField(kRemedy, detail.remedy, encoded);
  if (detail.fate_unknown) AddField("", kFateUnknown, encoded);
  status.SetPayload(kDetailUrl, absl::Cord(encoded));
  return status;
}

std::optional<ErrorDetail> GetDetail(const absl::Status& status) {
  auto payload = status.GetPayload(kDetailUrl);
  if (!payload) return std::nullopt;
  const std::string encoded(*payload);
  ErrorDetail detail;
  for (absl::string_view field : absl::StrSplit(encoded, kSeparator, absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&field, kWorker)) {
      detail.worker = std::string(field);
    } else if (absl::ConsumePrefix(&field, kObject)) {
      detail.object = std::string(field);
    } else if (absl::ConsumePrefix(&field, kRemedy)) {
      detail.remedy = std::string(field);
    } else if (field == kFateUnknown) {
      detail.fate_unknown = true;
    } else {
      return std::nullopt;
    }
  }
  return detail;
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
