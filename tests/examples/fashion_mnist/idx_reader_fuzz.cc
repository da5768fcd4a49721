// Reads arbitrary bytes as a compressed and as an uncompressed file, which gives a result or an
// error.

#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "examples/fashion_mnist/idx_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  psd::examples::IdxLimits limits;
  limits.max_inflated_bytes = size_t{2} << 20;
  const auto inflated = psd::examples::Gunzip(bytes, "fuzz", limits);
  if (inflated.ok()) static_cast<void>(psd::examples::ParseIdxLabels(*inflated, "fuzz"));
  static_cast<void>(psd::examples::ParseIdxLabels(bytes, "fuzz"));
  const auto images = psd::examples::ParseIdxImages(bytes, "fuzz");
  if (!images.ok()) return 0;
  const int64_t pixels = images->count * images->rows * images->columns;
  if (pixels != static_cast<int64_t>(images->pixels.size())) std::abort();
  return 0;
}
