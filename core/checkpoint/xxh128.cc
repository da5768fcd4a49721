#include "core/checkpoint/xxh128.h"

#include <xxhash.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "core/base/status.h"

namespace psd::checkpoint {

bool IsXxh128(absl::string_view text) {
  return text.size() == kXxh128Digits && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
         });
}

struct Xxh128::State {
  XXH3_state_t* const running = XXH3_createState();
  ~State() { XXH3_freeState(running); }
};

Xxh128::Xxh128() : state_(std::make_unique<State>()) {
  PSD_CHECK(state_->running != nullptr && XXH3_128bits_reset(state_->running) == XXH_OK,
            "a checksum can be started");
}
Xxh128::~Xxh128() = default;

void Xxh128::Add(absl::string_view bytes) {
  PSD_CHECK(XXH3_128bits_update(state_->running, bytes.data(), bytes.size()) == XXH_OK,
            "a checksum takes all bytes");
}

std::string Xxh128::Digest() const {
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(state_->running));
  return absl::BytesToHexString(
      {reinterpret_cast<const char*>(digest.digest), sizeof(digest.digest)});
}

}  // namespace psd::checkpoint
