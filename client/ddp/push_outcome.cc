#include "client/ddp/push_outcome.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"

namespace psd {
namespace {

// The fields are lines of text; the last one, the message, may have several.
enum Field : size_t {
  kCode,
  kLossScale,
  kFateUnknown,
  kWorker,
  kObject,
  kRemedy,
  kMessage,
  kCount
};

uint64_t BitsOf(double number) {
  uint64_t bits = 0;
  std::memcpy(&bits, &number, sizeof(bits));
  return bits;
}

double OfBits(uint64_t bits) {
  double number = 0;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

std::string OneLine(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\n", " "}});
}

}  // namespace

Tensor EncodeOutcome(const PushOutcome& outcome) {
  const ErrorDetail detail = GetDetail(outcome.status).value_or(ErrorDetail{});
  const std::string text = absl::StrCat(
      static_cast<int>(outcome.status.code()), "\n", BitsOf(outcome.loss_scale), "\n",
      detail.fate_unknown ? 1 : 0, "\n", OneLine(detail.worker), "\n", OneLine(detail.object), "\n",
      OneLine(detail.remedy), "\n", outcome.status.message());
  return Tensor::Of<uint8_t>({static_cast<int64_t>(text.size())},
                             std::vector<uint8_t>(text.begin(), text.end()));
}

absl::StatusOr<PushOutcome> DecodeOutcome(const Tensor& bytes) {
  const auto refuse = [&bytes] {
    return absl::InternalError(
        absl::StrCat("a rank told the outcome of a step in ", bytes.ToString(), ", which is none"));
  };
  if (!bytes.defined() || bytes.dtype() != DType::kU8 || !bytes.IsContiguous()) return refuse();
  const absl::string_view text(reinterpret_cast<const char*>(bytes.raw_data()), bytes.NumBytes());
  const std::vector<absl::string_view> fields =
      absl::StrSplit(text, absl::MaxSplits('\n', kCount - 1));
  int code = 0;
  uint64_t loss_scale = 0;
  if (fields.size() != kCount || !absl::SimpleAtoi(fields[kCode], &code) ||
      !absl::SimpleAtoi(fields[kLossScale], &loss_scale) || code < 0 || code > 16 ||
      (fields[kFateUnknown] != "0" && fields[kFateUnknown] != "1")) {
    return refuse();
  }
  PushOutcome outcome;
  outcome.loss_scale = OfBits(loss_scale);
  ErrorDetail detail;
  detail.worker = std::string(fields[kWorker]);
  detail.object = std::string(fields[kObject]);
  detail.remedy = std::string(fields[kRemedy]);
  detail.fate_unknown = fields[kFateUnknown] == "1";
  outcome.status =
      WithDetail(absl::Status(static_cast<absl::StatusCode>(code), fields[kMessage]), detail);
  return outcome;
}

}  // namespace psd
