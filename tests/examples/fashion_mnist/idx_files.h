#pragma once

// Makes IDX files in memory for tests, well-formed or not.

#include <zlib.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace psd::examples {

// Returns an IDX file with this magic number, these extents and these elements.
inline std::string IdxBytes(uint32_t magic, const std::vector<uint32_t>& extents,
                            absl::string_view elements) {
  std::string bytes;
  const auto append = [&bytes](uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  };
  append(magic);
  for (uint32_t extent : extents) append(extent);
  bytes.append(elements.data(), elements.size());
  return bytes;
}

// Returns `bytes` as a gzip file.
inline std::string Gzip(absl::string_view bytes) {
  z_stream stream = {};
  constexpr int kGzip = 16 + MAX_WBITS;
  deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(&out[0]);
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string WriteTestFile(const std::string& path, absl::string_view bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

}  // namespace psd::examples
