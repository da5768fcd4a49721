#include "examples/tinyshakespeare/text.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "examples/files/read_file.h"

namespace psd::examples {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;

// Returns the id of each byte that occurs, and the number of ids in `count`.
std::array<int64_t, 256> IdsOf(absl::string_view characters, int64_t* count) {
  std::array<int64_t, 256> ids = {};
  for (const char c : characters) ids[static_cast<unsigned char>(c)] = 1;
  *count = 0;
  for (int64_t& id : ids) id = id != 0 ? (*count)++ : -1;
  return ids;
}

}  // namespace

absl::StatusOr<Text> Text::Create(absl::string_view characters) {
  constexpr size_t kLeast = 10 * (kContext + 1);
  if (characters.size() < kLeast) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a text of ", characters.size(), " characters; at least ", kLeast, " are needed"));
  }
  Text text;
  const std::array<int64_t, 256> ids = IdsOf(characters, &text.characters_);
  for (const char c : characters) text.ids_.push_back(ids[static_cast<unsigned char>(c)]);
  text.train_ = static_cast<int64_t>(characters.size() - characters.size() / 10);
  return text;
}

absl::StatusOr<Text> Text::Read(const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::string characters,
                       ReadFile(path, kMaxFileBytes, "give a text of your own with --data"));
  absl::StatusOr<Text> text = Create(characters);
  if (!text.ok()) return Annotate(text.status(), path);
  return text;
}

absl::StatusOr<CharacterBatch> Text::MakeBatch(int64_t first,
                                               absl::Span<const int64_t> places) const {
  const auto count = static_cast<int64_t>(places.size());
  CharacterBatch batch;
  PSD_ASSIGN_OR_RETURN(batch.contexts, Tensor::Empty({count, kContext}, DType::kI64));
  PSD_ASSIGN_OR_RETURN(batch.next, Tensor::Empty({count}, DType::kI64));
  auto* contexts = batch.contexts.mutable_data<int64_t>();
  auto* next = batch.next.mutable_data<int64_t>();
  for (const int64_t place : places) {
    const int64_t* id = &ids_[static_cast<size_t>(first + place)];
    contexts = std::copy(id, id + kContext, contexts);
    *next++ = id[kContext];
  }
  return batch;
}

double Text::LossByFrequency() const {
  // Every character counts once more, so that none has the frequency 0.
  std::vector<double> counts(static_cast<size_t>(characters_), 1);
  const auto train = static_cast<size_t>(train_);
  for (size_t i = 0; i < train; ++i) ++counts[static_cast<size_t>(ids_[i])];
  const auto all = static_cast<double>(train_ + characters_);
  double loss = 0;
  for (size_t i = train + kContext; i < ids_.size(); ++i)
    loss -= std::log(counts[static_cast<size_t>(ids_[i])] / all);
  return loss / static_cast<double>(test_size());
}

}  // namespace psd::examples
