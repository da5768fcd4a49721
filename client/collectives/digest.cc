#include "client/collectives/digest.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace psd {

void Digest::Add(absl::string_view text) {
  sum_.Add(absl::StrCat(text.size(), " ", text, "\n"));
}

void Digest::Add(std::initializer_list<double> numbers) {
  for (const double number : numbers) Add(absl::StrFormat("%a", number));
}

void Digest::Add(const std::map<std::string, double>& options) {
  for (const auto& [name, value] : options) {
    Add(name);
    Add({value});
  }
}

}  // namespace psd
