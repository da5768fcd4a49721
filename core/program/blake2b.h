#pragma once

// BLAKE2b (RFC 7693) with a digest of 16 bytes: nobody can make two programs with one fingerprint.

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace psd::program {

std::array<uint8_t, 16> Blake2b128(absl::string_view bytes);

}  // namespace psd::program
