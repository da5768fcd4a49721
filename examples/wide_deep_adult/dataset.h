#pragma once

// Turns people into numbers: ids for the fields that have embeddings, scaled numbers for the
// others.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/tensor.h"
#include "examples/wide_deep_adult/adult_reader.h"

namespace psd::examples {

// The number of fields with embeddings: the categories, and the numbers in ranges.
inline constexpr int kFields = kCategories + kNumbers - 1;  // all numbers but the sampling weight

struct AdultBatch {
  std::array<Tensor, kFields> ids;  // i64[n] each, by field
  Tensor wide_ids;                  // i64[n, kFields]: ids in one table of all fields
  Tensor numbers;                   // f32[n, kNumbers - 1], scaled
  Tensor labels;                    // i64[n]: 1 for more than 50,000
};

// Thread-compatible.
class AdultDataset {
 public:
  // Every fifth person is for the test, the others are for training. The people for training define
  // the values of each field and the scale of numbers; id 0 of each field stands for all other
  // values. The ids depend only on the people, so all workers get the same ids. Errors:
  // INVALID_ARGUMENT for fewer than five people.
  static absl::StatusOr<AdultDataset> Create(std::vector<Person> people);

  int64_t train_size() const { return static_cast<int64_t>(train_.size()); }
  int64_t test_size() const { return static_cast<int64_t>(test_.size()); }
  // Return the number of ids of a field, and of the wide table.
  int64_t ids(int field) const { return static_cast<int64_t>(vocabulary_[field].size()) + 1; }
  int64_t wide_ids() const { return offsets_[kFields]; }

  // Requires: indices below train_size() or test_size().
  absl::StatusOr<AdultBatch> TrainBatch(absl::Span<const int32_t> indices) const {
    return MakeBatch(train_, indices);
  }
  absl::StatusOr<AdultBatch> TestBatch(absl::Span<const int32_t> indices) const {
    return MakeBatch(test_, indices);
  }

 private:
  struct Row {
    std::array<int64_t, kFields> ids;
    std::array<float, kNumbers - 1> numbers;
    bool rich;
  };
  void Learn(const std::vector<const Person*>& people);
  Row Encode(const Person& person) const;
  static absl::StatusOr<AdultBatch> Allocate(int64_t size);
  absl::StatusOr<AdultBatch> MakeBatch(const std::vector<Row>& rows,
                                       absl::Span<const int32_t> indices) const;

  std::array<std::map<std::string, int64_t>, kFields> vocabulary_;  // ids from 1
  std::array<int64_t, kFields + 1> offsets_ = {};                   // in the wide table
  std::array<double, kNumbers - 1> mean_ = {}, deviation_ = {};
  std::vector<Row> train_, test_;
};

}  // namespace psd::examples
