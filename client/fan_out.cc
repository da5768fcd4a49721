#include "client/fan_out.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace psd {

absl::Status CombineFailures(const std::string& what,
                             const std::vector<std::pair<std::string, absl::Status>>& failures) {
  if (failures.empty()) return absl::OkStatus();
  std::vector<std::string> texts;
  for (const auto& [owner, status] : failures)
    texts.push_back(absl::StrCat(owner, ": ", status.message()));
  const auto& [owner, first] = failures[0];
  auto detail = GetDetail(first).value_or(ErrorDetail{});
  detail.worker = owner;
  return WithDetail(
      absl::Status(first.code(), absl::StrCat(what, " on ", absl::StrJoin(texts, "; "))), detail);
}

}  // namespace psd
