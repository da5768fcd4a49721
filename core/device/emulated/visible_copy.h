#pragma once

// Copies and fills bytes so that ThreadSanitizer sees the accesses.
//
// The tests run with its option ignore_noninstrumented_modules=1. With gcc's runtime, the option
// hides all accesses in memcpy, memset and operator delete, whoever calls them, and so the races
// with them.

#include <cstddef>
#include <cstring>

#include "core/base/tsan.h"

#ifdef PSD_TSAN
extern "C" void __tsan_read_range(void*, long);   // NOLINT: the types that gcc declares
extern "C" void __tsan_write_range(void*, long);  // NOLINT
#endif

namespace psd::emulated {

// Tell ThreadSanitizer that this thread reads or writes the bytes.
inline void NoteRead([[maybe_unused]] const std::byte* begin, [[maybe_unused]] size_t bytes) {
#ifdef PSD_TSAN
  __tsan_read_range(const_cast<std::byte*>(begin), static_cast<long>(bytes));  // NOLINT
#endif
}
inline void NoteWrite([[maybe_unused]] std::byte* begin, [[maybe_unused]] size_t bytes) {
#ifdef PSD_TSAN
  __tsan_write_range(begin, static_cast<long>(bytes));  // NOLINT
#endif
}

// std::memcpy and std::memset.
inline void VisibleCopy(std::byte* to, const std::byte* from, size_t bytes) {
  NoteRead(from, bytes);
  NoteWrite(to, bytes);
  std::memcpy(to, from, bytes);
}
inline void VisibleFill(std::byte* begin, std::byte value, size_t bytes) {
  NoteWrite(begin, bytes);
  std::memset(begin, std::to_integer<int>(value), bytes);
}

}  // namespace psd::emulated
