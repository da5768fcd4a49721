// The first byte of an input chooses the kind of message. The rest is its bytes.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/dist_autograd/autograd_codec.h"

namespace {

using namespace psd::dist_autograd;  // NOLINT: all decoders of one header

// Checks that an accepted message can be encoded again and is accepted again.
template <typename T, typename Decode, typename Encode>
void RoundTrip(const std::string& bytes, Decode decode, Encode encode) {
  absl::StatusOr<T> decoded = decode(bytes);
  if (decoded.ok() && !decode(encode(*decoded)).ok()) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0:
      RoundTrip<MessageInfo>(bytes, DecodeMessageInfo, EncodeMessageInfo);
      break;
    case 1:
      RoundTrip<GradientInfo>(bytes, DecodeGradientInfo, EncodeGradientInfo);
      break;
    case 2:
      RoundTrip<MarkInfo>(bytes, DecodeMarkInfo, EncodeMarkInfo);
      break;
    case 3:
      RoundTrip<AbortInfo>(bytes, DecodeAbortInfo, EncodeAbortInfo);
      break;
    case 4:
      RoundTrip<GradientAnswer>(bytes, DecodeGradientAnswer, EncodeGradientAnswer);
      break;
    default:
      RoundTrip<std::vector<psd::GlobalId>>(bytes, DecodeRelease, EncodeRelease);
      break;
  }
  return 0;
}
