// Decodes arbitrary bytes as the header of a safetensors file. Decoded tensors must be within the
// file, and a header that psd can load must encode to one that decodes to the same.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/checkpoint/safetensors_codec.h"

namespace psd::checkpoint {
namespace {

void Check(bool condition) {
  if (!condition) std::abort();
}

void EncodeAgain(const SafetensorsHeader& header) {
  std::vector<TensorSpec> tensors;
  uint64_t data_bytes = 0;
  for (const SafetensorsEntry& entry : header.tensors) {
    if (!entry.type->dtype.has_value()) return;
    tensors.push_back({entry.name, *entry.type->dtype, entry.shape});
    data_bytes += entry.bytes;
  }
  auto bytes = EncodeSafetensorsHeader(tensors, header.metadata);
  Check(bytes.ok());
  auto again =
      DecodeSafetensorsHeader(bytes->substr(kSafetensorsPrefixBytes), bytes->size() + data_bytes);
  Check(again.ok() && again->metadata == header.metadata &&
        again->tensors.size() == header.tensors.size());
}

}  // namespace
}  // namespace psd::checkpoint

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace psd::checkpoint;  // NOLINT: a fuzz target's one function
  const absl::string_view file(reinterpret_cast<const char*>(data), size);
  auto length = SafetensorsHeaderLength(file, size);
  if (!length.ok()) return 0;
  Check(*length <= size - kSafetensorsPrefixBytes);
  auto header = DecodeSafetensorsHeader(file.substr(kSafetensorsPrefixBytes, *length), size);
  if (!header.ok()) return 0;
  for (const SafetensorsEntry& entry : header->tensors)
    Check(entry.offset <= size && entry.bytes <= size - entry.offset);
  EncodeAgain(*header);
  return 0;
}
