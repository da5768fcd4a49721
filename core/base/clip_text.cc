#include "core/base/clip_text.h"

#include "absl/strings/str_cat.h"

namespace psd {

std::string ClipText(absl::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  const size_t tail = most / 4;
  return absl::StrCat(text.substr(0, most - tail), " [", text.size() - most, " bytes left out] ",
                      text.substr(text.size() - tail));
}

}  // namespace psd
