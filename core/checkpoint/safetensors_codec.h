#pragma once

// Encodes and decodes the headers of safetensors files. See safetensors_format.h for the format.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/checkpoint/safetensors_format.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace psd::checkpoint {

// A tensor that a file will hold.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;

  uint64_t bytes() const { return static_cast<uint64_t>(shape.NumElements()) * ItemSize(dtype); }
};

// Returns `shape` with the first extent replaced by `rows`. Requires: `shape` has at least one
// axis, and the result is a valid shape.
Shape WithRows(const Shape& shape, int64_t rows);

// A tensor that a file holds.
struct SafetensorsEntry {
  std::string name;
  const SafetensorsType* type = nullptr;  // one of kSafetensorsTypes
  Shape shape;
  uint64_t offset = 0;  // where its elements start, counted from the start of the file
  uint64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;        // in the order of their elements in the file
  std::map<std::string, std::string> metadata;  // the contents of "__metadata__"
};

absl::string_view SafetensorsTypeName(DType dtype);

// Returns the beginning of a file: prefix and header, padded. The elements of the tensors must
// follow in the order of `tensors`.
// Errors: INVALID_ARGUMENT for a repeated name, the name "__metadata__", text that is not UTF-8, or
// a header of more than kMaxSafetensorsHeaderBytes.
absl::StatusOr<std::string> EncodeSafetensorsHeader(
    absl::Span<const TensorSpec> tensors, const std::map<std::string, std::string>& metadata);

// Returns the length of the header (without the prefix) of a file of `file_bytes` bytes that begins
// with `prefix`. Errors: INVALID_ARGUMENT if the length exceeds the file or the limit.
absl::StatusOr<uint64_t> SafetensorsHeaderLength(absl::string_view prefix, uint64_t file_bytes);

// Decodes the header `text` (without the prefix, padding included) of a file of `file_bytes` bytes.
// The file comes from outside, so everything is checked. Errors: INVALID_ARGUMENT, naming the
// tensor, for repeated names, unknown dtypes, shapes that overflow, and offsets that do not match
// the shape, overlap, leave gaps or are beyond the end of the file.
absl::StatusOr<SafetensorsHeader> DecodeSafetensorsHeader(absl::string_view text,
                                                          uint64_t file_bytes);

}  // namespace psd::checkpoint
