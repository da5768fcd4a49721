// Tests of the two ends of a ring, and of a reader that finds invalid bytes.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "core/base/memory_budget.h"
#include "core/carrier/shm/ring_format.h"
#include "core/carrier/shm/ring_reader.h"
#include "core/carrier/shm/ring_writer.h"

namespace psd::carrier {
namespace {

constexpr size_t kRing = 4096;
constexpr size_t kMaxFrame = 100'000;

class RingTest : public testing::Test {
 protected:
  static OutgoingFrame FrameOf(const std::vector<std::string>& parts) {
    OutgoingFrame frame;
    for (const std::string& part : parts) {
      frame.parts.push_back(Buffer::FromString(part));
      frame.bytes += part.size();
    }
    return frame;
  }
  static std::string BytesOf(ByteReader reader) {
    std::string bytes(reader.remaining(), '\0');
    reader.Read(bytes.data(), bytes.size());
    return bytes;
  }
  static std::string Counting(size_t bytes, char from) {
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(from + i * 7);
    return text;
  }

  bool Write(const std::string& bytes) {
    OutgoingFrame frame = FrameOf({bytes});
    auto whole = writer_.Write(frame);
    EXPECT_TRUE(whole.ok()) << whole.status();
    return *whole;
  }
  // Returns the next frame, which must be there.
  std::string Read() {
    auto frame = reader_.Next();
    EXPECT_TRUE(frame.ok()) << frame.status();
    if (!frame.ok() || !frame->has_value()) return "nothing";
    std::string bytes = BytesOf(**frame);
    reader_.Pop();
    return bytes;
  }
  // Puts a record's header at the start of the ring and says that `bytes` were written.
  absl::Status ReadForged(uint64_t header, uint64_t tail) {
    std::memcpy(memory_.get(), &header, sizeof(header));
    out_.tail.store(tail);
    return reader_.Next().status();
  }
  static uint64_t Header(uint32_t bytes, uint8_t kind, uint8_t more, uint16_t rest) {
    return uint64_t{bytes} | uint64_t{kind} << 32 | uint64_t{more} << 40 | uint64_t{rest} << 48;
  }

  std::unique_ptr<std::byte[]> memory_ = std::make_unique<std::byte[]>(kRing);
  TailLine out_;  // belongs to the writer
  HeadLine in_;   // belongs to the reader
  std::shared_ptr<MemoryAccount> account_ = MemoryAccount::Create(0, NewHeapAllocator());
  RingWriter writer_{memory_.get(), kRing, &out_, &in_};
  RingReader reader_{memory_.get(), kRing, &out_, &in_, kMaxFrame, *account_};
};

TEST_F(RingTest, FramesOfAllSizesComeOutAsTheyWentIn) {
  for (size_t round = 0; round < 3000; ++round) {
    const size_t bytes = 1 + round * 37 % 2000;
    const std::string frame = Counting(bytes, static_cast<char>(round));
    ASSERT_TRUE(Write(frame));
    ASSERT_EQ(Read(), frame) << "round " << round;
  }
}

TEST_F(RingTest, SeveralPartsBecomeOneFrame) {
  OutgoingFrame frame = FrameOf({"one", "", "two", std::string(1000, 'x')});
  ASSERT_TRUE(*writer_.Write(frame));
  EXPECT_EQ(Read(), "onetwo" + std::string(1000, 'x'));
}

TEST_F(RingTest, AFrameLongerThanTheRingGoesInParts) {
  const std::string bytes = Counting(50'000, 'a');
  OutgoingFrame frame = FrameOf({bytes.substr(0, 7), bytes.substr(7)});
  std::string got;
  while (!*writer_.Write(frame)) {
    auto next = reader_.Next();
    ASSERT_TRUE(next.ok()) << next.status();
    ASSERT_FALSE(next->has_value()) << "the frame is not whole yet";
  }
  EXPECT_EQ(Read(), bytes);
  EXPECT_EQ(account_->used_bytes(), 0u) << "its memory is given back";
  ASSERT_TRUE(Write("after"));
  EXPECT_EQ(Read(), "after");
}

TEST_F(RingTest, AFullRingMakesItsWriterWaitUntilSpaceIsGivenBack) {
  int written = 0;
  while (Write(std::string(1000, static_cast<char>('a' + written)))) ++written;
  EXPECT_EQ(written, 4);
  writer_.SetStarved(true);
  EXPECT_FALSE(writer_.HasSpace());
  EXPECT_FALSE(reader_.TakeWakesWriter()) << "nothing was read yet";
  EXPECT_EQ(Read(), std::string(1000, 'a'));
  EXPECT_TRUE(reader_.TakeWakesWriter());
  EXPECT_FALSE(reader_.TakeWakesWriter()) << "told once";
  EXPECT_TRUE(writer_.HasSpace());
  EXPECT_TRUE(Write("more"));
}

TEST_F(RingTest, AFrameStaysUntilItIsPopped) {
  ASSERT_TRUE(Write("stays"));
  EXPECT_EQ(BytesOf(**reader_.Next()), "stays");
  EXPECT_EQ(BytesOf(**reader_.Next()), "stays");
  EXPECT_EQ(in_.head.load(), 0u);
  reader_.Pop();
  EXPECT_EQ(in_.head.load(), 16u);
}

TEST_F(RingTest, TheNumbersOfALargeFrameAreCopiedBeforeTheyAreRead) {
  // The preamble of a message with one buffer, followed by more bytes than are copied as a whole.
  std::string frame(24, '\0');
  frame[12] = 1;
  frame += Counting(2500, 'n');
  auto memory = std::make_unique<std::byte[]>(2 * kRing);
  RingWriter writer(memory.get(), 2 * kRing, &out_, &in_);
  RingReader reader(memory.get(), 2 * kRing, &out_, &in_, kMaxFrame, *account_);
  OutgoingFrame large = FrameOf({frame});
  ASSERT_TRUE(*writer.Write(large));
  const ByteReader before = **reader.Next();
  std::memset(memory.get(), 0xff, 2 * kRing);
  const std::string after = BytesOf(before);
  const size_t numbers = 24 + 16 + 8;
  EXPECT_EQ(after.substr(0, numbers), frame.substr(0, numbers));
  EXPECT_NE(after.substr(numbers), frame.substr(numbers)) << "the payload is read in place";
}

TEST_F(RingTest, ATailThatGoesBackIsNonsense) {
  ASSERT_TRUE(Write("one"));
  Read();
  out_.tail.store(8);
  const absl::Status status = reader_.Next().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "went back from 16 to 8")) << status;
}

TEST_F(RingTest, ATailBeyondTheRingIsNonsense) {
  const absl::Status status = ReadForged(Header(8, 1, 0, 0), kRing + 8);
  EXPECT_TRUE(absl::StrContains(status.message(), "its tail is at 4104")) << status;
}

TEST_F(RingTest, ATailBetweenTwoRecordsIsNonsense) {
  const absl::Status status = ReadForged(Header(8, 1, 0, 0), 13);
  EXPECT_TRUE(absl::StrContains(status.message(), "no multiple of 8")) << status;
}

TEST_F(RingTest, ARecordOfAnUnknownKindIsNonsense) {
  EXPECT_TRUE(absl::StrContains(ReadForged(Header(8, 2, 0, 0), 16).message(), "of kind 2"));
}

TEST_F(RingTest, ReservedBytesMustBeZero) {
  EXPECT_TRUE(absl::StrContains(ReadForged(Header(8, 1, 0, 1), 16).message(), "reserved"));
  EXPECT_TRUE(absl::StrContains(ReadForged(Header(8, 1, 2, 0), 16).message(), "reserved"));
}

TEST_F(RingTest, ARecordThatReachesBehindTheTailIsNonsense) {
  EXPECT_TRUE(absl::StrContains(ReadForged(Header(9, 1, 0, 0), 16).message(),
                                "a record of 9 bytes where 16 bytes were written"));
}

TEST_F(RingTest, ARecordOfNoBytesIsNonsense) {
  EXPECT_EQ(ReadForged(Header(0, 1, 0, 0), 16).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RingTest, AFrameThatNeverEndsIsNonsense) {
  absl::Status status;
  uint64_t tail = 0;
  while (status.ok()) {
    const uint64_t header = Header(1016, 1, 1, 0);
    std::memcpy(memory_.get() + tail % kRing, &header, sizeof(header));
    tail += 1024;
    out_.tail.store(tail);
    status = reader_.Next().status();
  }
  EXPECT_TRUE(absl::StrContains(status.message(), "the longest that is accepted has 100000"))
      << status;
  EXPECT_LT(tail, kMaxFrame + 2 * kRing);
}

TEST_F(RingTest, AFrameInPartsIsChargedAsItComes) {
  auto small = MemoryAccount::Create(70'000, NewHeapAllocator());
  RingReader reader(memory_.get(), kRing, &out_, &in_, kMaxFrame, *small);
  OutgoingFrame frame = FrameOf({std::string(90'000, 'x')});
  absl::Status status;
  while (status.ok()) {
    ASSERT_FALSE(*writer_.Write(frame));
    status = reader.Next().status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST_F(RingTest, AReaderThatClaimsToHaveReadMoreIsFound) {
  ASSERT_TRUE(Write(std::string(2000, 'x')));
  ASSERT_TRUE(Write(std::string(1000, 'x')));
  in_.head.store(uint64_t{1} << 40);
  OutgoingFrame frame = FrameOf({std::string(2000, 'y')});
  const absl::Status status = writer_.Write(frame).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "says that it has read 1099511627776")) << status;
}

TEST_F(RingTest, AReaderThatIsAlwaysThereDoesNotExhaustTheStack) {
  // The reader's position is the writer's own position, so the ring always looks empty to the
  // writer.
  auto* const head = reinterpret_cast<HeadLine*>(&out_);
  RingWriter writer(memory_.get(), kRing, &out_, head);
  OutgoingFrame frame = FrameOf({std::string(size_t{64} << 20, 'x')});
  EXPECT_TRUE(*writer.Write(frame));
}

TEST_F(RingTest, AReaderThatGoesBackIsFound) {
  ASSERT_TRUE(Write(std::string(2000, 'x')));
  Read();
  ASSERT_TRUE(Write(std::string(2000, 'x')));
  ASSERT_TRUE(Write(std::string(1000, 'x')));  // reads the reader's head
  in_.head.store(8);
  OutgoingFrame frame = FrameOf({std::string(2000, 'y')});
  EXPECT_EQ(writer_.Write(frame).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd::carrier
