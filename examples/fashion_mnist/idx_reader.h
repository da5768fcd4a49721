#pragma once

// Reads the gzip'd IDX files of the MNIST family of data sets.
//
// An IDX file is big-endian: two zero bytes, the element type (8: unsigned byte), the number of
// dimensions, one 32-bit extent per dimension, then the elements, row-major.
//
// Errors of all functions name the file: NOT_FOUND (no such file), INVALID_ARGUMENT (not gzip,
// damaged or cut off, not IDX, another type or number of dimensions, a size that disagrees with the
// extents), RESOURCE_EXHAUSTED (larger than the limits below). The sizes in a header alone cause no
// allocation.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd::examples {

struct IdxLimits {
  size_t max_file_bytes = size_t{256} << 20;      // of the compressed file
  size_t max_inflated_bytes = size_t{512} << 20;  // after decompression
};

struct IdxImages {
  int64_t count = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<uint8_t> pixels;  // count * rows * columns
};

absl::StatusOr<IdxImages> ReadIdxImages(const std::string& path, const IdxLimits& limits = {});
absl::StatusOr<std::vector<uint8_t>> ReadIdxLabels(const std::string& path,
                                                   const IdxLimits& limits = {});

// The same from bytes in memory. `name` is used in error messages.
absl::StatusOr<std::string> Gunzip(absl::string_view bytes, const std::string& name,
                                   const IdxLimits& limits = {});
absl::StatusOr<IdxImages> ParseIdxImages(absl::string_view bytes, const std::string& name);
absl::StatusOr<std::vector<uint8_t>> ParseIdxLabels(absl::string_view bytes,
                                                    const std::string& name);

}  // namespace psd::examples
