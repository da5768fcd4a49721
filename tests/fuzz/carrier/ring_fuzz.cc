// Lets a peer write arbitrary bytes into its ring, and change them at any time, while this end
// reads the ring, decodes its frames and feeds them to the code behind the decoder.
//
// An input is a list of commands of the peer and of the reader, each a byte and its arguments:
//
//   0  offset (2 bytes), length (1 byte), bytes   writes into the ring
//   1  count (2 bytes)                            moves the tail forward by `count`
//   2  tail (8 bytes)                             sets the tail
//   3                                             reads the next frame and gives its space back
//   4                                             reads the next frame and leaves it in the ring

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "core/base/memory_budget.h"
#include "core/base/status.h"
#include "core/carrier/frame.h"
#include "core/carrier/shm/ring_format.h"
#include "core/carrier/shm/ring_reader.h"
#include "tests/fuzz/carrier/feed.h"

namespace psd::carrier {
namespace {

constexpr size_t kRing = kMinRingBytes;
constexpr size_t kMaxFrame = 70'000;

class Commands {
 public:
  explicit Commands(absl::string_view bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  uint64_t Number(size_t size) {
    uint64_t number = 0;
    const absl::string_view taken = Bytes(size);
    std::memcpy(&number, taken.data(), taken.size());
    return number;
  }
  absl::string_view Bytes(size_t size) {
    const absl::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(taken.size());
    return taken;
  }

 private:
  absl::string_view bytes_;
};

struct Ring {
  std::unique_ptr<std::byte[]> memory = std::make_unique<std::byte[]>(kRing);
  TailLine out;
  HeadLine in;
};

void Scribble(Commands& commands, Ring& ring) {
  const size_t offset = commands.Number(2) % kRing;
  const absl::string_view bytes = commands.Bytes(commands.Number(1));
  std::memcpy(ring.memory.get() + offset, bytes.data(), std::min(bytes.size(), kRing - offset));
}

void RunOne(absl::string_view input) {
  const Limits limits = SmallLimits();
  const auto account = MemoryAccount::Create(0, NewHeapAllocator());
  Receiver receiver(limits, account);
  const auto owned = std::make_unique<Ring>();  // on the heap, which aligns it in every build
  Ring& ring = *owned;
  RingReader reader(ring.memory.get(), kRing, &ring.out, &ring.in, kMaxFrame, *account);
  for (Commands commands(input); !commands.empty();) {
    const uint64_t command = commands.Number(1) % 5;
    if (command == 0) Scribble(commands, ring);
    if (command == 1) ring.out.tail.fetch_add(commands.Number(2));
    if (command == 2) ring.out.tail.store(commands.Number(8));
    if (command < 3) continue;
    const uint64_t head = ring.in.head.load();
    const absl::StatusOr<std::optional<ByteReader>> bytes = reader.Next();
    if (!bytes.ok()) return;
    if (!bytes->has_value()) continue;
    PSD_CHECK((*bytes)->remaining() <= kMaxFrame, "frames are bounded");
    FrameDecoder decoder(**bytes, limits);
    const absl::StatusOr<std::optional<Frame>> frame = decoder.Next();
    if (!frame.ok() || !frame->has_value() || !receiver.Feed(**frame)) return;
    if (command == 3) reader.Pop();
    PSD_CHECK(ring.in.head.load() >= head, "the head never goes back");
  }
}

}  // namespace
}  // namespace psd::carrier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  psd::carrier::RunOne({reinterpret_cast<const char*>(data), size});
  return 0;
}
