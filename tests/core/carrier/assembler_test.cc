#include "core/carrier/assembler.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/carrier/bulk_queue.h"

namespace psd::carrier {
namespace {

constexpr size_t kPiece = kMinPieceBytes;

Message LargeMessage() {
  Message message;
  message.header = "header";
  message.buffers = {Buffer::FromString(std::string(100'000, 'a')), Buffer(),
                     Buffer::FromString(std::string(10, 'b')),
                     Buffer::FromString(std::string(70'000, 'c'))};
  return message;
}

// Feeds what a BulkQueue sends into an assembler, as a link does.
class AssemblerTest : public testing::Test {
 protected:
  AssemblerTest() : assembler_(limits_, NewHeapAllocator()), queue_(kPiece) {
    queue_.set_peer_assembly_bytes(limits_.max_assembly_bytes);
  }

  static std::string Encode(const BulkQueue::Piece& piece) {
    FrameEncoder encoder;
    piece.Encode(&encoder);
    std::string wire;
    for (const Buffer& part : encoder.Take()) wire.append(part.view().data(), part.size());
    return wire;
  }

  absl::Status Feed(absl::string_view wire) {
    FrameDecoder decoder(ByteReader(absl::MakeConstSpan(&wire, 1)), limits_);
    while (true) {
      absl::StatusOr<std::optional<Frame>> frame = decoder.Next();
      if (!frame.ok()) return frame.status();
      if (!frame->has_value()) return absl::OkStatus();
      absl::Status status = std::holds_alternative<AnnounceFrame>(**frame)
                                ? assembler_.OnAnnounce(std::get<AnnounceFrame>(**frame))
                                : FeedPiece(std::get<PieceFrame>(**frame));
      if (!status.ok()) return status;
    }
  }

  absl::Status FeedPiece(const PieceFrame& piece) {
    absl::StatusOr<Assembler::Slot> slot = assembler_.BeginPiece(piece);
    if (!slot.ok()) return slot.status();
    slot->Fill();
    std::optional<Message> message = assembler_.EndPiece(*slot);
    if (message.has_value()) whole_.push_back(*std::move(message));
    return absl::OkStatus();
  }

  absl::Status FeedPiece(uint64_t transfer, uint64_t offset, size_t size) {
    std::string bytes(size, 'x');
    absl::string_view chunk = bytes;
    return FeedPiece({transfer, offset, ByteReader(absl::MakeConstSpan(&chunk, 1))});
  }

  Limits limits_;
  Assembler assembler_;
  BulkQueue queue_;
  std::vector<Message> whole_;
};

TEST_F(AssemblerTest, PiecesOverSeveralStreamsInAnyOrderMakeTheMessage) {
  queue_.Add(LargeMessage());
  std::vector<std::string> wires;
  for (size_t stream = 0; auto piece = queue_.Next(stream); stream = (stream + 1) % 3) {
    wires.push_back(Encode(*piece));
  }
  ASSERT_EQ(wires.size(), 3u);
  for (size_t i : {2, 0, 1}) ASSERT_TRUE(Feed(wires[i]).ok());
  ASSERT_EQ(whole_.size(), 1u);
  EXPECT_EQ(whole_[0].header, "header");
  ASSERT_EQ(whole_[0].buffers.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(whole_[0].buffers[i].view() == LargeMessage().buffers[i].view()) << i;
  }
  EXPECT_EQ(assembler_.transfers(), 0u);
  EXPECT_EQ(assembler_.assembly_bytes(), 0u);
}

TEST_F(AssemblerTest, WhatNoHonestPeerSendsIsRefused) {
  ASSERT_TRUE(assembler_.OnAnnounce({1, kPiece, {0, {kPiece + 10}}}).ok());
  EXPECT_FALSE(FeedPiece(2, 0, kPiece).ok()) << "unknown transfer";
  EXPECT_FALSE(FeedPiece(1, 5, kPiece).ok()) << "odd offset";
  EXPECT_FALSE(FeedPiece(1, 0, kPiece - 1).ok()) << "short piece";
  EXPECT_FALSE(FeedPiece(1, kPiece, 11).ok()) << "long last piece";
  EXPECT_FALSE(FeedPiece(1, 2 * kPiece, 1).ok()) << "past the end";
  EXPECT_FALSE(FeedPiece(1, ~uint64_t{0} / kPiece * kPiece, kPiece).ok()) << "far past the end";
  EXPECT_TRUE(FeedPiece(1, 0, kPiece).ok());
  EXPECT_FALSE(FeedPiece(1, 0, kPiece).ok()) << "twice";
  EXPECT_FALSE(assembler_.OnAnnounce({1, kPiece, {1, {kPiece + 10}}}).ok()) << "other words";
  EXPECT_TRUE(assembler_.OnAnnounce({1, kPiece, {0, {kPiece + 10}}}).ok());
  EXPECT_TRUE(FeedPiece(1, kPiece, 10).ok());
  EXPECT_EQ(whole_.size(), 1u);
  EXPECT_FALSE(FeedPiece(1, 0, kPiece).ok()) << "after the end";
}

TEST(Assembler, AssemblyIsBounded) {
  Limits limits;
  limits.max_assembly_bytes = 250'000;
  Assembler assembler(limits, NewHeapAllocator());
  EXPECT_TRUE(assembler.OnAnnounce({1, kPiece, {0, {100'000}}}).ok());
  EXPECT_TRUE(assembler.OnAnnounce({2, kPiece, {0, {100'000}}}).ok());
  EXPECT_EQ(assembler.OnAnnounce({3, kPiece, {0, {100'000}}}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Assembler, ExhaustedMemoryIsSaid) {
  class Empty : public Allocator {
    absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t) override {
      return absl::ResourceExhaustedError("none left");
    }
  };
  Assembler assembler(Limits(), std::make_shared<Empty>());
  EXPECT_EQ(assembler.OnAnnounce({1, kPiece, {0, {100'000}}}).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(assembler.assembly_bytes(), 0u);
}

TEST(BulkQueue, MessagesTakeTurnsAndSmallOnesFinishFirst) {
  BulkQueue queue(kPiece);
  queue.set_peer_assembly_bytes(size_t{1} << 30);
  Message large;
  large.buffers.push_back(Buffer::FromString(std::string(10 * kPiece, 'l')));
  Message small;
  small.buffers.push_back(Buffer::FromString(std::string(kPiece + 1, 's')));
  queue.Add(large);
  queue.Add(small);
  std::vector<uint64_t> order;
  while (auto piece = queue.Next(0)) order.push_back(piece->transfer);
  ASSERT_EQ(order.size(), 12u);
  EXPECT_EQ(order[1], 2u);
  EXPECT_EQ(order[3], 2u);
}

TEST(BulkQueue, MessagesOfFewPiecesAreCutSmallerSoThatTheStreamsShareThem) {
  BulkQueue queue(size_t{1} << 20);
  queue.set_peer_assembly_bytes(size_t{1} << 30);
  const auto pieces = [&queue](size_t bytes) {
    Message message;
    message.buffers.push_back(Buffer::FromString(std::string(bytes, 'm')));
    queue.Add(std::move(message));
    std::vector<size_t> sizes;
    while (auto piece = queue.Next(sizes.size())) sizes.push_back(piece->bytes);
    return sizes;
  };
  constexpr size_t kKiB = 1 << 10;
  EXPECT_EQ(pieces(100 * kKiB), (std::vector<size_t>{64 * kKiB, 36 * kKiB}));
  EXPECT_EQ(pieces(2048 * kKiB), (std::vector<size_t>(4, 512 * kKiB)));
  EXPECT_EQ(pieces(8192 * kKiB), (std::vector<size_t>(8, 1024 * kKiB)));
}

TEST(BulkQueue, WaitsForAcksAtThePeersBound) {
  BulkQueue queue(kPiece);
  Message message;
  message.buffers.push_back(Buffer::FromString(std::string(kPiece, 'x')));
  queue.Add(message);
  EXPECT_FALSE(queue.Next(0).has_value()) << "the peer's bound is not known yet";
  queue.set_peer_assembly_bytes(AssemblyBytes(ShapeOf(message)));
  queue.Add(message);
  EXPECT_TRUE(queue.Next(0).has_value());
  EXPECT_FALSE(queue.Next(0).has_value());
  EXPECT_FALSE(queue.OnAck(2).ok());
  EXPECT_TRUE(queue.OnAck(1).ok());
  EXPECT_FALSE(queue.OnAck(1).ok());
  EXPECT_TRUE(queue.Next(0).has_value());
  EXPECT_TRUE(queue.empty());
}

TEST(MessageAssembly, SmallBuffersShareBlocks) {
  class Counting : public Allocator {
   public:
    absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override {
      ++count;
      return heap->Allocate(bytes);
    }
    int count = 0;
    std::shared_ptr<Allocator> heap = NewHeapAllocator();
  } allocator;
  MessageShape shape{0, std::vector<size_t>(1000, 1000)};
  auto assembly = MessageAssembly::Create(shape, allocator);
  ASSERT_TRUE(assembly.ok());
  EXPECT_LE(allocator.count, 5);
}

}  // namespace
}  // namespace psd::carrier
