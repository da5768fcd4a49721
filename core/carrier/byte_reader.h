#pragma once

// Reads bytes that are in several chunks, as a network delivers them, without joining the chunks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace psd::carrier {

// A position in a list of chunks and a bound. A value: copies read independently. The chunks and
// the list itself must outlive it. Thread-compatible.
class ByteReader {
 public:
  ByteReader() = default;
  explicit ByteReader(absl::Span<const absl::string_view> chunks) : chunks_(chunks) {
    for (absl::string_view chunk : chunks) remaining_ += chunk.size();
  }

  size_t remaining() const { return remaining_; }

  // Returns a reader of the next `size` bytes, and skips them in this reader. Requires: size <=
  // remaining().
  ByteReader Take(size_t size) {
    ByteReader part = *this;
    part.remaining_ = size;
    Advance(size, [](absl::string_view) {});
    return part;
  }

  // Copies the next `size` bytes to `out`. Requires: size <= remaining().
  void Read(void* out, size_t size) {
    auto* to = static_cast<char*>(out);
    Advance(size, [&to](absl::string_view bytes) {
      std::memcpy(to, bytes.data(), bytes.size());
      to += bytes.size();
    });
  }

  // Read a little-endian integer. Requires: enough bytes remain.
  uint32_t ReadU32() { return ReadInteger<uint32_t>(); }
  uint64_t ReadU64() { return ReadInteger<uint64_t>(); }

 private:
  template <typename T>
  T ReadInteger() {
    unsigned char bytes[sizeof(T)];
    Read(bytes, sizeof(T));
    T value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(bytes[i]) << (8 * i);
    return value;
  }

  template <typename F>
  void Advance(size_t size, F consume) {
    remaining_ -= size;
    while (size > 0) {
      absl::string_view rest = chunks_[chunk_].substr(offset_);
      size_t part = std::min(size, rest.size());
      if (part > 0) consume(rest.substr(0, part));
      size -= part;
      offset_ += part;
      if (offset_ == chunks_[chunk_].size()) {
        ++chunk_;
        offset_ = 0;
      }
    }
  }

  absl::Span<const absl::string_view> chunks_;
  size_t chunk_ = 0;
  size_t offset_ = 0;
  size_t remaining_ = 0;
};

}  // namespace psd::carrier
