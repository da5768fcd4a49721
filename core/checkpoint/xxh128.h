#pragma once

// XXH3-128, the checksum of a save's files, piece by piece: `xxhsum -H128` gives the same. It finds
// damage, not forgery (see docs/decisions/0006-saves.md).

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace psd::checkpoint {

inline constexpr size_t kXxh128Digits = 32;

// Whether `text` is what Digest gives.
bool IsXxh128(absl::string_view text);

// Thread-compatible.
class Xxh128 {
 public:
  Xxh128();
  ~Xxh128();

  void Add(absl::string_view bytes);
  // Of all that was added so far: kXxh128Digits lower-case hexadecimal digits.
  std::string Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace psd::checkpoint
