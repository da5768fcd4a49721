#include "examples/wide_deep_adult/adult_reader.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "examples/files/read_file.h"

namespace psd::examples {
namespace {

constexpr size_t kColumns = 15;
constexpr size_t kMaxFileBytes = size_t{1} << 30;
constexpr size_t kNumberColumns[kNumbers] = {0, 2, 4, 10, 11, 12};
constexpr size_t kCategoryColumns[kCategories] = {1, 3, 5, 6, 7, 8, 9, 13};

absl::StatusOr<bool> ParseLabel(absl::string_view text) {
  // adult.test ends its labels with a full stop.
  const absl::string_view label = absl::StripSuffix(text, ".");
  if (label == ">50K") return true;
  if (label == "<=50K") return false;
  return absl::InvalidArgumentError(
      absl::StrCat("column 15 is '", text.substr(0, 32), "', neither '<=50K' nor '>50K'"));
}

absl::StatusOr<Person> ParsePerson(absl::string_view line) {
  std::vector<absl::string_view> columns = absl::StrSplit(line, ',');
  if (columns.size() != kColumns) {
    return absl::InvalidArgumentError(absl::StrCat(columns.size(), " columns instead of ", kColumns,
                                                   ": no UCI Adult data, or a truncated line"));
  }
  for (absl::string_view& column : columns) column = absl::StripAsciiWhitespace(column);
  Person person;
  for (size_t i = 0; i < kNumbers; ++i) {
    const absl::string_view text = columns[kNumberColumns[i]];
    if (absl::SimpleAtod(text, &person.numbers[i]) && std::isfinite(person.numbers[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat("column ", kNumberColumns[i] + 1, " is '",
                                                   text.substr(0, 32), "', not a number"));
  }
  for (size_t i = 0; i < kCategories; ++i)
    person.categories[i] = std::string(columns[kCategoryColumns[i]]);
  PSD_ASSIGN_OR_RETURN(person.rich, ParseLabel(columns[kColumns - 1]));
  return person;
}

}  // namespace

absl::StatusOr<std::vector<Person>> ParseAdult(absl::string_view text) {
  std::vector<Person> people;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::StatusOr<Person> person = ParsePerson(line);
    if (!person.ok()) return Annotate(person.status(), absl::StrCat("line ", number));
    people.push_back(*std::move(person));
  }
  if (people.empty()) return absl::InvalidArgumentError("it is empty; UCI's file has 32,561 lines");
  return people;
}

absl::StatusOr<std::vector<Person>> ReadAdult(const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::string text,
                       ReadFile(path, kMaxFileBytes, "give the path of UCI's file adult.data"));
  absl::StatusOr<std::vector<Person>> people = ParseAdult(text);
  if (!people.ok()) return Annotate(people.status(), path);
  return people;
}

}  // namespace psd::examples
