#pragma once

// Reads the gzip'd IDX files that the MNIST family of data sets comes in.
//
// An IDX file is big-endian: two zero bytes, the element type (8: unsigned byte), the number of
// dimensions, one 32-bit extent per dimension, then the elements, row-major.
//
// Errors, for all functions, naming the file: NOT_FOUND (no such file), INVALID_ARGUMENT (not
// gzip, damaged or cut off, not IDX, another type or number of dimensions, a size that disagrees
// with the extents), RESOURCE_EXHAUSTED (larger than the limits below). Nothing is allocated on the
// word of a header alone.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd::examples {

struct IdxLimits {
  size_t max_file_bytes = size_t{256} << 20;      // as it lies on the disk
  size_t max_inflated_bytes = size_t{512} << 20;  // decompressed
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

// The same from bytes at hand; `name` is for messages.
absl::StatusOr<std::string> Gunzip(absl::string_view bytes, const std::string& name,
                                   const IdxLimits& limits = {});
absl::StatusOr<IdxImages> ParseIdxImages(absl::string_view bytes, const std::string& name);
absl::StatusOr<std::vector<uint8_t>> ParseIdxLabels(absl::string_view bytes,
                                                    const std::string& name);

}  // namespace psd::examples
