#include "examples/wide_deep_adult/adult_reader.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"

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

absl::Status FileError(const std::string& path) {
  const int error = errno;
  return absl::ErrnoToStatus(
      error, absl::StrCat(path, " cannot be read; give the path of UCI's file adult.data"));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (file == nullptr) return FileError(path);
  std::string text;
  char block[1 << 16];
  size_t got = 0;
  while ((got = std::fread(block, 1, sizeof block, file.get())) > 0) {
    text.append(block, got);
    if (text.size() > kMaxFileBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, " is larger than ", kMaxFileBytes, " bytes: no UCI Adult data"));
    }
  }
  if (std::ferror(file.get()) != 0) return FileError(path);
  return text;
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
  PSD_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<std::vector<Person>> people = ParseAdult(text);
  if (!people.ok()) return Annotate(people.status(), path);
  return people;
}

}  // namespace psd::examples
