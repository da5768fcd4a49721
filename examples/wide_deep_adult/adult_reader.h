#pragma once

// The UCI Adult census data ("adult.data"): who earns more than 50,000 dollars a year.
//
// One person per line, 15 columns between commas, blanks around them ignored; a missing value is a
// question mark. Empty lines are passed over.

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

// Errors: INVALID_ARGUMENT naming line and column for what is no such file: another number of
// columns, a number that is none, an unknown label, no person at all.
absl::StatusOr<std::vector<Person>> ParseAdult(absl::string_view text);

// Errors: those of ParseAdult with the path in front; NOT_FOUND or PERMISSION_DENIED when it cannot
// be read, RESOURCE_EXHAUSTED beyond 1 GiB.
absl::StatusOr<std::vector<Person>> ReadAdult(const std::string& path);

}  // namespace psd::examples
