#include "core/base/quoted.h"

#include "absl/strings/ascii.h"

namespace psd {

std::string Quoted(absl::string_view text) {
  constexpr size_t kMaxShown = 64;
  std::string shown = "'";
  for (char c : text.substr(0, kMaxShown)) {
    shown += absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : '?';
  }
  return shown + (text.size() > kMaxShown ? "...'" : "'");
}

}  // namespace psd
