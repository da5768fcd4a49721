#include "core/optim/functional/functional_optimizer.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/device.h"

namespace psd::optim {

std::string ShortestText(double value) {
  std::string text;
  for (int digits = 6; digits <= 17; ++digits) {
    text = absl::StrFormat("%.*g", digits, value);
    if (std::strtod(text.c_str(), nullptr) == value) break;
  }
  return text;
}

absl::Status FunctionalOptimizer::CheckDevice(const Device* device) const {
  return device == nullptr ? absl::OkStatus() : NotOnDevice(spec().type, device);
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
