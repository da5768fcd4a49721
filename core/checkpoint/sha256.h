#pragma once

// SHA-256, piece by piece.

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace psd::checkpoint {

// Thread-compatible.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;

  void Add(absl::string_view bytes);
  // 64 lower-case hexadecimal digits. Once; nothing may be added after it.
  std::string Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace psd::checkpoint
