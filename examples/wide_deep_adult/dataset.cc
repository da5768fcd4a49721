#include "examples/wide_deep_adult/dataset.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::examples {
namespace {

constexpr size_t kTestEvery = 5;
constexpr Number kUsedNumbers[kNumbers - 1] = {Number::kAge, Number::kEducationYears,
                                               Number::kCapitalGain, Number::kCapitalLoss,
                                               Number::kHours};

double NumberOf(const Person& person, size_t used) {
  return person.numbers[static_cast<size_t>(kUsedNumbers[used])];
}

// Returns the number, or its logarithm for capital gains and losses, which span five orders of
// magnitude.
double Compressed(const Person& person, size_t used) {
  const double value = NumberOf(person, used);
  const bool capital =
      kUsedNumbers[used] == Number::kCapitalGain || kUsedNumbers[used] == Number::kCapitalLoss;
  return capital ? std::log1p(std::max(value, 0.0)) : value;
}

// Returns the range of a number, as a value that has an embedding. Ranges are narrow enough to
// follow a curve.
std::string RangeOf(const Person& person, size_t used) {
  const double value = NumberOf(person, used);
  switch (kUsedNumbers[used]) {
    case Number::kAge:
      return absl::StrCat(static_cast<int64_t>(std::floor(std::clamp(value, 0.0, 200.0) / 4)));
    case Number::kHours:
      return absl::StrCat(static_cast<int64_t>(std::floor(std::clamp(value, 0.0, 200.0) / 5)));
    case Number::kEducationYears:
      return absl::StrCat(static_cast<int64_t>(std::clamp(value, 0.0, 100.0)));
    default:
      return absl::StrCat(static_cast<int64_t>(std::floor(8 * Compressed(person, used))));
  }
}

std::string FieldOf(const Person& person, size_t field) {
  return field < kCategories ? person.categories[field] : RangeOf(person, field - kCategories);
}

}  // namespace

absl::StatusOr<AdultDataset> AdultDataset::Create(std::vector<Person> people) {
  if (people.size() < kTestEvery) {
    return absl::InvalidArgumentError(
        absl::StrCat("only ", people.size(), " people; at least ", kTestEvery, " are needed"));
  }
  std::vector<const Person*> train, test;
  for (size_t i = 0; i < people.size(); ++i)
    (i % kTestEvery == kTestEvery - 1 ? test : train).push_back(&people[i]);
  AdultDataset dataset;
  dataset.Learn(train);
  for (const Person* person : train) dataset.train_.push_back(dataset.Encode(*person));
  for (const Person* person : test) dataset.test_.push_back(dataset.Encode(*person));
  return dataset;
}

void AdultDataset::Learn(const std::vector<const Person*>& people) {
  for (size_t field = 0; field < kFields; ++field) {
    for (const Person* person : people) vocabulary_[field][FieldOf(*person, field)] = 0;
    int64_t id = 0;
    for (auto& [value, number] : vocabulary_[field]) number = ++id;
    offsets_[field + 1] = offsets_[field] + id + 1;
  }
  const auto count = static_cast<double>(people.size());
  for (size_t used = 0; used < kNumbers - 1; ++used) {
    double sum = 0, squares = 0;
    for (const Person* person : people) sum += Compressed(*person, used);
    mean_[used] = sum / count;
    for (const Person* person : people)
      squares += std::pow(Compressed(*person, used) - mean_[used], 2);
    deviation_[used] = std::max(std::sqrt(squares / count), 1e-6);
  }
}

AdultDataset::Row AdultDataset::Encode(const Person& person) const {
  Row row;
  for (size_t field = 0; field < kFields; ++field) {
    const auto found = vocabulary_[field].find(FieldOf(person, field));
    row.ids[field] = found == vocabulary_[field].end() ? 0 : found->second;
  }
  for (size_t used = 0; used < kNumbers - 1; ++used) {
    const double scaled = (Compressed(person, used) - mean_[used]) / deviation_[used];
    row.numbers[used] = static_cast<float>(std::clamp(scaled, -10.0, 10.0));
  }
  row.rich = person.rich;
  return row;
}

absl::StatusOr<AdultBatch> AdultDataset::Allocate(int64_t size) {
  AdultBatch batch;
  for (Tensor& ids : batch.ids) {
    PSD_ASSIGN_OR_RETURN(ids, Tensor::Empty({size}, DType::kI64));
  }
  PSD_ASSIGN_OR_RETURN(batch.wide_ids, Tensor::Empty({size, kFields}, DType::kI64));
  PSD_ASSIGN_OR_RETURN(batch.numbers, Tensor::Empty({size, kNumbers - 1}, DType::kF32));
  PSD_ASSIGN_OR_RETURN(batch.labels, Tensor::Empty({size}, DType::kI64));
  return batch;
}

absl::StatusOr<AdultBatch> AdultDataset::MakeBatch(const std::vector<Row>& rows,
                                                   absl::Span<const int32_t> indices) const {
  PSD_ASSIGN_OR_RETURN(AdultBatch batch, Allocate(static_cast<int64_t>(indices.size())));
  int64_t* wide = batch.wide_ids.mutable_data<int64_t>();
  float* numbers = batch.numbers.mutable_data<float>();
  for (size_t i = 0; i < indices.size(); ++i) {
    const Row& row = rows[static_cast<size_t>(indices[i])];
    for (size_t field = 0; field < kFields; ++field) {
      batch.ids[field].mutable_data<int64_t>()[i] = row.ids[field];
      *wide++ = offsets_[field] + row.ids[field];
    }
    numbers = std::copy(row.numbers.begin(), row.numbers.end(), numbers);
    batch.labels.mutable_data<int64_t>()[i] = row.rich ? 1 : 0;
  }
  return batch;
}

}  // namespace psd::examples
