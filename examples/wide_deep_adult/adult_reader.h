#pragma once

// Reads the UCI Adult census data ("adult.data"), which says which people earn more than 50,000
// dollars a year.
//
// A line is one person, with 15 columns between commas. Blanks around a column are ignored, and a
// missing value is a question mark. Empty lines are skipped.

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd::examples {

// Columns 0, 2, 4, 10, 11 and 12 of the file.
enum class Number { kAge, kWeight, kEducationYears, kCapitalGain, kCapitalLoss, kHours };
inline constexpr int kNumbers = 6;
// Columns 1, 3, 5, 6, 7, 8, 9 and 13.
enum class Category {
  kWorkClass,
  kEducation,
  kMaritalStatus,
  kOccupation,
  kRelationship,
  kRace,
  kSex,
  kCountry
};
inline constexpr int kCategories = 8;

struct Person {
  std::array<double, kNumbers> numbers = {};
  std::array<std::string, kCategories> categories;
  bool rich = false;  // more than 50,000
};

// Errors: INVALID_ARGUMENT, which names line and column, for another number of columns, a column
// that should be a number and is not, an unknown label, or a file without a person.
absl::StatusOr<std::vector<Person>> ParseAdult(absl::string_view text);

// Errors: those of ParseAdult with the path in front; NOT_FOUND or PERMISSION_DENIED if the file
// cannot be read, RESOURCE_EXHAUSTED for a file above 1 GiB.
absl::StatusOr<std::vector<Person>> ReadAdult(const std::string& path);

}  // namespace psd::examples
