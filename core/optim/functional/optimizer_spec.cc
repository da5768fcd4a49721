#include "core/optim/functional/optimizer_spec.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace psd::optim {

std::string ShortestText(double value) {
  std::string text;
  for (int digits = 6; digits <= 17; ++digits) {
    text = absl::StrFormat("%.*g", digits, value);
    if (std::strtod(text.c_str(), nullptr) == value) break;
  }
  return text;
}

std::string OptimizerSpec::ToString() const {
  std::string text = absl::StrCat(type, "(");
  const char* separator = "";
  for (const auto& [name, value] : options) {
    absl::StrAppend(&text, separator, name, "=", ShortestText(value));
    separator = ", ";
  }
  return absl::StrCat(text, ")");
}

}  // namespace psd::optim
