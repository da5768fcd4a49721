#pragma once

// XXH3-128, the checksum of the files of a save, computed piece by piece. `xxhsum -H128` prints the
// same digits. It detects damage, not forgery (see docs/decisions/0006-saves.md).

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace psd::checkpoint {

inline constexpr size_t kXxh128Digits = 32;

// Whether `text` has the form of a Digest.
bool IsXxh128(absl::string_view text);

// Computes one checksum. Thread-compatible.
class Xxh128 {
 public:
  Xxh128();
  ~Xxh128();

  void Add(absl::string_view bytes);
  // Returns the checksum of all bytes added so far, as kXxh128Digits lower-case hexadecimal digits.
  std::string Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace psd::checkpoint
