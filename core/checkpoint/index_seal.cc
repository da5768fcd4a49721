#include "core/checkpoint/index_seal.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/checkpoint/xxh128.h"

namespace psd::checkpoint {
namespace {

constexpr absl::string_view kBefore = " \"index_xxh128\": \"";
constexpr absl::string_view kAfter = "\"\n}\n";
constexpr size_t kSealBytes = kBefore.size() + kXxh128Digits + kAfter.size();

std::string DigestOf(absl::string_view text) {
  Xxh128 checksum;
  checksum.Add(text);
  return checksum.Digest();
}

absl::Status Damaged(absl::string_view how) {
  return absl::DataLossError(
      absl::StrCat("the index is damaged: ", how,
                   "; it was changed or cut short: load another "
                   "save, or fetch this one again from where it was copied"));
}

}  // namespace

std::string SealIndex(absl::string_view json) {
  PSD_CHECK(absl::ConsumeSuffix(&json, "\n}"), "an indented JSON object is sealed");
  const std::string sealed = absl::StrCat(json, ",\n");
  return absl::StrCat(sealed, kBefore, DigestOf(sealed), kAfter);
}

absl::Status CheckIndexSeal(absl::string_view text) {
  absl::string_view seal = text.substr(text.size() - std::min(text.size(), kSealBytes));
  text.remove_suffix(seal.size());
  if (!absl::ConsumePrefix(&seal, kBefore) || !absl::ConsumeSuffix(&seal, kAfter) ||
      !IsXxh128(seal))
    return Damaged("it does not end with its checksum");
  const std::string sum = DigestOf(text);
  if (seal == sum) return absl::OkStatus();
  return Damaged(absl::StrCat("its XXH128 is ", sum, ", and it says ", seal));
}

}  // namespace psd::checkpoint
