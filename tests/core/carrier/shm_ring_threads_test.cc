// Both ends of rings at once, on two threads. A sanitizer for threads sees accesses that the rings
// do not order only if both ends use the same addresses, so most tests have one mapping of each
// segment. One test reads another mapping of the same memory, as a peer does.

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/base/unique_fd.h"
#include "core/carrier/byte_reader.h"
#include "core/carrier/shm/ring_format.h"
#include "core/carrier/shm/ring_reader.h"
#include "core/carrier/shm/ring_writer.h"
#include "core/carrier/shm/segment.h"

namespace psd::carrier {
namespace {

constexpr RingSizes kSizes{4096, 8192, 1};
constexpr uint32_t kFrames = 4000;
constexpr size_t kLongest = 20'000;  // more than any of the rings has
constexpr int kPatienceMs = 60'000;

// The same numbers in every run.
class Numbers {
 public:
  explicit Numbers(uint32_t seed) : state_(seed * 2654435761u + 1) {}
  uint32_t Next() {
    state_ = state_ * 1664525u + 1013904223u;
    return state_ >> 8;
  }

 private:
  uint32_t state_;
};

// The bytes of a frame. Most frames are short, some are longer than the ring.
std::string Contents(uint32_t number) {
  constexpr std::array<uint32_t, 8> kUpTo = {16, 16, 100, 100, 1000, 1000, 3000, kLongest};
  Numbers numbers(number);
  const uint32_t most = kUpTo[numbers.Next() % kUpTo.size()];
  std::string bytes(1 + numbers.Next() % most, '\0');
  for (char& byte : bytes) byte = static_cast<char>(numbers.Next());
  return bytes;
}

// Writes the frames from `first` on into a ring, one after another.
class Source {
 public:
  Source(RingWriter& writer, uint32_t first)
      : writer_(writer), next_(first), end_(first + kFrames) {
    Take();
  }

  bool done() const { return next_ == end_; }
  // Writes until the ring is full or all is written.
  void Write() {
    while (!done()) {
      const absl::StatusOr<bool> whole = writer_.Write(frame_);
      ASSERT_TRUE(whole.ok()) << whole.status();
      if (!*whole) return;
      ++next_;
      Take();
    }
  }

 private:
  void Take() {
    const std::string bytes = Contents(next_);
    frame_ = OutgoingFrame();
    const size_t first = bytes.size() % 9;  // in two parts, of which either may be empty
    for (const std::string& part : {bytes.substr(0, first), bytes.substr(first)})
      frame_.parts.push_back(Buffer::FromString(part));
    frame_.bytes = bytes.size();
  }

  RingWriter& writer_;
  uint32_t next_;
  const uint32_t end_;
  OutgoingFrame frame_;
};

// Reads these frames from a ring, and checks them.
class Drain {
 public:
  Drain(RingReader& reader, uint32_t first)
      : reader_(reader), next_(first), end_(first + kFrames) {}

  uint32_t left() const { return end_ - next_; }
  bool done() const { return left() == 0; }
  // Reads a frame if one is there.
  void Read() {
    const absl::StatusOr<std::optional<ByteReader>> frame = reader_.Next();
    ASSERT_TRUE(frame.ok()) << frame.status();
    if (!frame->has_value()) return;
    ByteReader bytes = **frame;
    std::string got(bytes.remaining(), '\0');
    bytes.Read(got.data(), got.size());
    ASSERT_TRUE(got == Contents(next_)) << "frame " << next_ << " of " << got.size() << " bytes";
    reader_.Pop();
    ++next_;
  }

 private:
  RingReader& reader_;
  uint32_t next_;
  const uint32_t end_;
};

// The ends of ring `ring` from the segment of one end to the other end. Each end sees the other
// end's segment as `From` or `To`: the segment itself, or a mapping of its own.
template <typename To>
RingWriter WriterOf(OwnSegment& from, size_t ring, To& to) {
  return {from.ring(ring), kSizes.BytesOf(ring), &from.header().rings[ring].out,
          &to.header().rings[ring].in};
}
template <typename From>
RingReader ReaderOf(From& from, size_t ring, OwnSegment& to, MemoryAccount& account) {
  return {from.ring(ring),
          kSizes.BytesOf(ring),
          &from.header().rings[ring].out,
          &to.header().rings[ring].in,
          /*max_frame_bytes=*/2 * kLongest,
          account};
}

class RingThreadsTest : public testing::Test {
 protected:
  // Both ends write and read ring `ring` at once. `near_seen` and `far_seen` are the segments as
  // the other end sees them.
  template <typename Seen>
  void ExchangeOver(size_t ring, Seen& near_seen, Seen& far_seen) {
    RingWriter near_writer = WriterOf(*near_, ring, far_seen);
    RingWriter far_writer = WriterOf(*far_, ring, near_seen);
    RingReader near_reader = ReaderOf(far_seen, ring, *near_, *account_);
    RingReader far_reader = ReaderOf(near_seen, ring, *far_, *account_);
    Source from_near(near_writer, 0), from_far(far_writer, kFrames);
    Drain at_near(near_reader, kFrames), at_far(far_reader, 0);
    std::thread far([&] { Exchange(from_far, at_far); });
    Exchange(from_near, at_near);
    far.join();
    EXPECT_TRUE(at_near.done() && at_far.done()) << "ring " << ring;
    EXPECT_EQ(account_->used_bytes(), 2 * kSizes.SegmentBytes()) << "long frames are given back";
  }

  const std::shared_ptr<MemoryAccount> account_ = MemoryAccount::Create(0, NewHeapAllocator());
  const std::unique_ptr<OwnSegment> near_ = *OwnSegment::Create(kSizes, *account_);
  const std::unique_ptr<OwnSegment> far_ = *OwnSegment::Create(kSizes, *account_);

 private:
  // Writes and reads in turn until all is through, as the thread of a link does. Little but the
  // rings orders what the two threads do.
  static void Exchange(Source& source, Drain& drain) {
    absl::Time until = absl::Now() + absl::Milliseconds(kPatienceMs);
    uint32_t left = drain.left();
    while (!(source.done() && drain.done()) && !HasFailure()) {
      if (std::exchange(left, drain.left()) != drain.left())
        until = absl::Now() + absl::Milliseconds(kPatienceMs);
      if (absl::Now() > until) ADD_FAILURE() << "a frame is lost";
      source.Write();
      if (!drain.done()) drain.Read();
      sched_yield();
    }
  }
};

TEST_F(RingThreadsTest, BothEndsWriteAndReadAtOnce) {
  for (size_t ring = 0; ring < kSizes.rings(); ++ring) ExchangeOver(ring, *near_, *far_);
}

TEST_F(RingThreadsTest, BothEndsReadThroughMappingsOfTheirOwn) {
  const auto near_seen = *PeerSegment::Map(kSizes, UniqueFd(dup(near_->fd())));
  const auto far_seen = *PeerSegment::Map(kSizes, UniqueFd(dup(far_->fd())));
  for (size_t ring = 0; ring < kSizes.rings(); ++ring) ExchangeOver(ring, *near_seen, *far_seen);
}

// The writer sleeps while the ring is full, and the reader wakes it. A wake-up that is lost leaves
// both waiting.
TEST_F(RingThreadsTest, AWriterThatSleepsIsWokenWheneverThereIsSpace) {
  RingWriter writer = WriterOf(*near_, 0, *far_);
  RingReader reader = ReaderOf(*near_, 0, *far_, *account_);
  const UniqueFd bell(eventfd(0, EFD_CLOEXEC));
  int starved = 0;
  std::thread writing([&] {
    Source source(writer, 0);
    for (source.Write(); !source.done() && !HasFailure(); source.Write()) {
      ++starved;
      writer.SetStarved(true);
      pollfd rings = {bell.get(), POLLIN, 0};
      if (!writer.HasSpace()) {
        ASSERT_EQ(poll(&rings, 1, kPatienceMs), 1) << "no wake-up came";
        uint64_t count = 0;
        ASSERT_EQ(read(bell.get(), &count, sizeof(count)), ssize_t{sizeof(count)});
      }
      writer.SetStarved(false);
    }
  });
  // More frames than fit into the ring.
  constexpr uint32_t kMany = kSizes.control_bytes / kRecordAlignment;
  Drain drain(reader, 0);
  while (!drain.done() && !HasFailure()) {
    // Now and then the reader looks away until the ring is full.
    const bool looks_away = drain.left() > kMany && drain.left() % 50 == 0;
    if (looks_away && near_->header().rings[0].out.starved.load() == 0) {
      sched_yield();
      continue;
    }
    drain.Read();
    const uint64_t one = 1;
    if (reader.TakeWakesWriter()) {
      EXPECT_EQ(write(bell.get(), &one, sizeof(one)), ssize_t{sizeof(one)});
    }
  }
  writing.join();
  EXPECT_TRUE(drain.done());
  EXPECT_GT(starved, 0);
}

}  // namespace
}  // namespace psd::carrier
