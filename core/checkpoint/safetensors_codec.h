#pragma once

// Headers of safetensors files <-> structs. The format: safetensors_format.h.

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

// `shape` with another first extent. Requires: it has one.
Shape WithRows(const Shape& shape, int64_t rows);

// A tensor that a file holds.
struct SafetensorsEntry {
  std::string name;
  const SafetensorsType* type = nullptr;  // one of kSafetensorsTypes
  Shape shape;
  uint64_t offset = 0;  // of its elements, from the start of the file
  uint64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;        // as they lie in the file
  std::map<std::string, std::string> metadata;  // of "__metadata__"
};

absl::string_view SafetensorsTypeName(DType dtype);

// What a file begins with: prefix and header, padded. The tensors' elements follow, in this order.
// Errors: INVALID_ARGUMENT for a repeated name, the name "__metadata__", text that is not UTF-8, or
// a header beyond kMaxSafetensorsHeaderBytes.
absl::StatusOr<std::string> EncodeSafetensorsHeader(
    absl::Span<const TensorSpec> tensors, const std::map<std::string, std::string>& metadata);

// The length of the header (without the prefix) of a file of `file_bytes` bytes that begins with
// `prefix`. Errors: INVALID_ARGUMENT when it is beyond the file or the limit.
absl::StatusOr<uint64_t> SafetensorsHeaderLength(absl::string_view prefix, uint64_t file_bytes);

// The header `text` (without the prefix, padding included) of a file of `file_bytes` bytes. Nothing
// about the arguments is believed.
// Errors: INVALID_ARGUMENT naming the tensor: repeated names, unknown dtypes, shapes that overflow,
// offsets that do not match the shape, overlap, leave gaps or lie beyond the file.
absl::StatusOr<SafetensorsHeader> DecodeSafetensorsHeader(absl::string_view text,
                                                          uint64_t file_bytes);

}  // namespace psd::checkpoint
