#pragma once

// Constants of the safetensors file format.
//
//   8 bytes      N, little-endian: the length of the header
//   N bytes      JSON, an object: tensor name -> {"dtype": "F32", "shape": [2, 3],
//                "data_offsets": [begin, end]} and, optionally, "__metadata__": {text -> text};
//                may be padded with blanks at its end
//   the rest     the tensors' elements: row-major, little-endian; data_offsets count from here, and
//                the tensors fill it without overlap or gap
//
// Source: the format's public description, https://huggingface.co/docs/safetensors.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "core/tensor/dtype.h"

namespace psd::checkpoint {

inline constexpr size_t kSafetensorsPrefixBytes = 8;
// The longest header that is accepted. Other readers of the format have the same limit.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
// Headers are padded to a multiple of this, so that elements are aligned in a mapped file.
inline constexpr size_t kSafetensorsAlignment = 8;
inline constexpr absl::string_view kSafetensorsMetadataKey = "__metadata__";
inline constexpr absl::string_view kSafetensorsSuffix = ".safetensors";

// An element type of the format.
struct SafetensorsType {
  absl::string_view name;
  size_t bytes;
  // Unset if psd has no such dtype: such tensors can be listed, not loaded.
  std::optional<DType> dtype;
};

inline constexpr SafetensorsType kSafetensorsTypes[] = {
    {"F64", 8, DType::kF64},   {"F32", 4, DType::kF32},      {"F16", 2, DType::kF16},
    {"BF16", 2, DType::kBF16}, {"I64", 8, DType::kI64},      {"I32", 4, DType::kI32},
    {"I16", 2, std::nullopt},  {"I8", 1, std::nullopt},      {"U64", 8, std::nullopt},
    {"U32", 4, std::nullopt},  {"U16", 2, std::nullopt},     {"U8", 1, DType::kU8},
    {"BOOL", 1, DType::kBool}, {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt},
};

}  // namespace psd::checkpoint
