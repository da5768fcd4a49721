#pragma once

// A text whose next character is to be predicted from those before it.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/tensor/tensor.h"

namespace psd::examples {

// The number of characters from which the next one is predicted.
inline constexpr int64_t kContext = 8;

struct CharacterBatch {
  Tensor contexts;  // i64[n, kContext]: the ids of characters that follow each other
  Tensor next;      // i64[n]: the id of the character behind them
};

// Bytes are the characters; those that occur have the ids from 0 in their order. The first nine
// tenths of the text are for training and the rest for the test. A place is the number of the first
// character of a context, counted from the beginning of the training or the test.
// Thread-compatible.
class Text {
 public:
  // Errors: INVALID_ARGUMENT for less than 10 * (kContext + 1) characters.
  static absl::StatusOr<Text> Create(absl::string_view characters);
  // Errors: those of Create, with the path in front, and those of ReadFile.
  static absl::StatusOr<Text> Read(const std::string& path);

  int64_t characters() const { return characters_; }  // the number of ids
  // The numbers of places.
  int64_t train_size() const { return train_ - kContext; }
  int64_t test_size() const { return static_cast<int64_t>(ids_.size()) - train_ - kContext; }

  // Requires: places from 0 to train_size() - 1, or test_size() - 1.
  absl::StatusOr<CharacterBatch> TrainBatch(absl::Span<const int64_t> places) const {
    return MakeBatch(0, places);
  }
  absl::StatusOr<CharacterBatch> TestBatch(absl::Span<const int64_t> places) const {
    return MakeBatch(train_, places);
  }

  // Returns the mean loss on the test, in nats per character, of a model that knows how often each
  // character occurs in the training and nothing of the context.
  double LossByFrequency() const;

 private:
  absl::StatusOr<CharacterBatch> MakeBatch(int64_t first, absl::Span<const int64_t> places) const;

  std::vector<int64_t> ids_;
  int64_t train_ = 0;  // the number of characters for training
  int64_t characters_ = 0;
};

}  // namespace psd::examples
