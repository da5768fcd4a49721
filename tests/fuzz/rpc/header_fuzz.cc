// DecodeHeader refuses arbitrary bytes, or gives a header that survives a round trip.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/rpc/header_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto header =
      psd::rpc::DecodeHeader(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!header.ok()) return 0;
  std::string bytes = psd::rpc::EncodeHeader(*header);
  auto again = psd::rpc::DecodeHeader(bytes);
  PSD_CHECK(again.ok(), "what was decoded once must decode again");
  PSD_CHECK(psd::rpc::EncodeHeader(*again) == bytes, "and encode to the same bytes");
  return 0;
}
