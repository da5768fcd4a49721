#include "tools/cli/tagged_lines.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace psd::cli {

void TaggedLines::Add(absl::string_view bytes, std::string* out) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const size_t room = kMostLineBytes - begun_.size();
    const absl::string_view part = bytes.substr(0, std::min(end, room));
    bytes.remove_prefix(part.size());
    begun_.append(part.data(), part.size());
    const bool ends = !bytes.empty() && bytes[0] == '\n';
    if (ends) bytes.remove_prefix(1);
    if (ends || (begun_.size() == kMostLineBytes && !bytes.empty())) {
      absl::StrAppend(out, tag_, begun_, "\n");
      begun_.clear();
    }
  }
}

void TaggedLines::End(std::string* out) {
  if (begun_.empty()) return;
  absl::StrAppend(out, tag_, begun_, "\n");
  begun_.clear();
}

}  // namespace psd::cli
