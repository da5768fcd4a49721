// Decodes arbitrary bytes as frames of a peer, and feeds the frames to the code behind the decoder.
//
// The first byte of an input says how the rest is cut into chunks. 0 means a single chunk.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/carrier/frame.h"
#include "tests/fuzz/carrier/feed.h"

namespace psd::carrier {
namespace {

std::vector<absl::string_view> Cut(absl::string_view bytes, size_t chunk) {
  std::vector<absl::string_view> chunks;
  if (chunk == 0) chunk = bytes.size() + 1;
  for (size_t at = 0; at < bytes.size(); at += chunk) chunks.push_back(bytes.substr(at, chunk));
  return chunks;
}

void RunOne(absl::string_view input) {
  if (input.empty()) return;
  Limits limits = SmallLimits();
  const auto account = MemoryAccount::Create(0, NewHeapAllocator());
  Receiver receiver(limits, account);
  std::vector<absl::string_view> chunks =
      Cut(input.substr(1), static_cast<unsigned char>(input[0]));
  FrameDecoder decoder(ByteReader(chunks), limits);
  while (true) {
    absl::StatusOr<std::optional<Frame>> frame = decoder.Next();
    if (!frame.ok() || !frame->has_value()) return;
    if (!receiver.Feed(**frame)) return;
  }
}

}  // namespace
}  // namespace psd::carrier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  psd::carrier::RunOne({reinterpret_cast<const char*>(data), size});
  return 0;
}
