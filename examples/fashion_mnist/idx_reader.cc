#include "examples/fashion_mnist/idx_reader.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "examples/files/read_file.h"

namespace psd::examples {
namespace {

constexpr unsigned char kUnsignedByte = 8;
constexpr size_t kChunkBytes = size_t{64} << 10;

absl::Status Bad(const std::string& name, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", what));
}

// Ends a zlib stream when it goes out of scope.
struct InflateEnd {
  void operator()(z_stream* stream) const { inflateEnd(stream); }
};

absl::Status DescribeZlib(int code, const z_stream& stream, const std::string& name) {
  switch (code) {
    case Z_BUF_ERROR:
      return Bad(name, absl::StrCat("cut off: the gzip stream has no end (", stream.total_in,
                                    " bytes read); fetch the file again"));
    case Z_MEM_ERROR:
      return absl::ResourceExhaustedError(absl::StrCat(name, ": no memory to decompress it"));
    default:
      return Bad(name, absl::StrCat("not a gzip file, or damaged (zlib: ",
                                    stream.msg != nullptr ? stream.msg : zError(code), ", at byte ",
                                    stream.total_in, ")"));
  }
}

uint32_t BigEndian(absl::string_view bytes, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[offset + i]);
  return value;
}

struct IdxHeader {
  std::vector<int64_t> extents;
  size_t bytes = 0;
};

absl::StatusOr<IdxHeader> ParseHeader(absl::string_view bytes, const std::string& name,
                                      size_t dimensions) {
  IdxHeader header;
  header.bytes = 4 + 4 * dimensions;
  if (bytes.size() < header.bytes) {
    return Bad(name, absl::StrCat("cut off: ", bytes.size(), " bytes, but an IDX header takes ",
                                  header.bytes));
  }
  const uint32_t magic = BigEndian(bytes, 0);
  const uint32_t expected = uint32_t{kUnsignedByte} << 8 | static_cast<uint32_t>(dimensions);
  if (magic != expected) {
    return Bad(name, absl::StrCat("not an IDX file of unsigned bytes in ", dimensions,
                                  " dimensions: magic number 0x", absl::Hex(magic, absl::kZeroPad8),
                                  ", expected 0x", absl::Hex(expected, absl::kZeroPad8)));
  }
  for (size_t i = 0; i < dimensions; ++i) header.extents.push_back(BigEndian(bytes, 4 + 4 * i));
  return header;
}

// Returns the elements behind the header, after checking their number against the extents.
absl::StatusOr<absl::string_view> Elements(absl::string_view bytes, const IdxHeader& header,
                                           const std::string& name) {
  const uint64_t present = bytes.size() - header.bytes;
  uint64_t expected = 1;
  for (int64_t extent : header.extents) {
    if (extent == 0) return Bad(name, "an extent is 0: no data");
    if (expected > std::numeric_limits<uint64_t>::max() / static_cast<uint64_t>(extent)) {
      return Bad(name, "the extents overflow");
    }
    expected *= static_cast<uint64_t>(extent);
  }
  if (present != expected) {
    return Bad(name, absl::StrCat(present < expected ? "cut off" : "too long", ": ", present,
                                  " elements, but its header says ", expected));
  }
  return bytes.substr(header.bytes);
}

absl::StatusOr<std::string> ReadAndGunzip(const std::string& path, const IdxLimits& limits) {
  PSD_ASSIGN_OR_RETURN(
      const std::string bytes,
      ReadFile(path, limits.max_file_bytes,
               "install the package dataset-fashion-mnist, or give the folder with --data"));
  if (bytes.empty()) return Bad(path, "empty");
  return Gunzip(bytes, path, limits);
}

}  // namespace

absl::StatusOr<std::string> Gunzip(absl::string_view bytes, const std::string& name,
                                   const IdxLimits& limits) {
  if (bytes.size() > std::min<size_t>(limits.max_file_bytes, std::numeric_limits<uInt>::max())) {
    return absl::ResourceExhaustedError(absl::StrCat(
        name, ": ", bytes.size(), " bytes are more than the limit of ", limits.max_file_bytes));
  }
  z_stream stream = {};
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  if (inflateInit2(&stream, kGzipOnly) != Z_OK) {
    return absl::ResourceExhaustedError(absl::StrCat(name, ": no memory to decompress it"));
  }
  std::unique_ptr<z_stream, InflateEnd> end(&stream);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string inflated;
  for (int code = Z_OK; code != Z_STREAM_END;) {
    const size_t before = inflated.size();
    if (before > limits.max_inflated_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          name, ": decompresses to more than the limit of ", limits.max_inflated_bytes, " bytes"));
    }
    inflated.resize(before + kChunkBytes);
    stream.next_out = reinterpret_cast<Bytef*>(&inflated[before]);
    stream.avail_out = kChunkBytes;
    code = inflate(&stream, Z_NO_FLUSH);
    if (code != Z_OK && code != Z_STREAM_END) return DescribeZlib(code, stream, name);
    inflated.resize(before + kChunkBytes - stream.avail_out);
  }
  if (stream.avail_in != 0) {
    return Bad(name, absl::StrCat(stream.avail_in, " stray bytes after the gzip stream"));
  }
  return inflated;
}

absl::StatusOr<IdxImages> ParseIdxImages(absl::string_view bytes, const std::string& name) {
  PSD_ASSIGN_OR_RETURN(const IdxHeader header, ParseHeader(bytes, name, 3));
  PSD_ASSIGN_OR_RETURN(const absl::string_view elements, Elements(bytes, header, name));
  return IdxImages{header.extents[0], header.extents[1], header.extents[2],
                   std::vector<uint8_t>(elements.begin(), elements.end())};
}

absl::StatusOr<std::vector<uint8_t>> ParseIdxLabels(absl::string_view bytes,
                                                    const std::string& name) {
  PSD_ASSIGN_OR_RETURN(const IdxHeader header, ParseHeader(bytes, name, 1));
  PSD_ASSIGN_OR_RETURN(const absl::string_view elements, Elements(bytes, header, name));
  return std::vector<uint8_t>(elements.begin(), elements.end());
}

absl::StatusOr<IdxImages> ReadIdxImages(const std::string& path, const IdxLimits& limits) {
  PSD_ASSIGN_OR_RETURN(const std::string bytes, ReadAndGunzip(path, limits));
  return ParseIdxImages(bytes, path);
}

absl::StatusOr<std::vector<uint8_t>> ReadIdxLabels(const std::string& path,
                                                   const IdxLimits& limits) {
  PSD_ASSIGN_OR_RETURN(const std::string bytes, ReadAndGunzip(path, limits));
  return ParseIdxLabels(bytes, path);
}

}  // namespace psd::examples
