#include "core/carrier/frame.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"

namespace psd::carrier {
namespace {

std::string Join(const std::vector<Buffer>& parts) {
  std::string all;
  for (const Buffer& part : parts) all.append(part.view().data(), part.size());
  return all;
}

std::string Encode(const std::function<void(FrameEncoder&)>& append) {
  FrameEncoder encoder;
  append(encoder);
  size_t bytes = encoder.bytes();
  std::string wire = Join(encoder.Take());
  EXPECT_EQ(wire.size(), bytes);
  return wire;
}

Message Sample() {
  Message message;
  message.header = "hi";
  message.buffers = {Buffer::FromString("abc"), Buffer(), Buffer::FromString("z")};
  return message;
}

// Decodes the first frame of `wire`, which must outlive the frame.
absl::StatusOr<std::optional<Frame>> DecodeFirst(absl::string_view* wire,
                                                 const Limits& limits = {}) {
  return FrameDecoder(ByteReader(absl::MakeConstSpan(wire, 1)), limits).Next();
}

absl::Status DecodeError(absl::string_view wire, const Limits& limits = {}) {
  return DecodeFirst(&wire, limits).status();
}

std::string Hex(const std::string& bytes) {
  return absl::BytesToHexString(bytes);
}

TEST(FrameGolden, Hello) {
  HelloFrame hello;
  for (size_t i = 0; i < hello.token.size(); ++i) hello.token[i] = static_cast<uint8_t>(i);
  hello.role = StreamRole::kBulk;
  hello.stream_index = 3;
  hello.limits.max_header_bytes = 0x11;
  hello.limits.max_message_bytes = 0x2233;
  hello.limits.max_buffers = 0x44;
  hello.limits.max_assembly_bytes = 0x0102030405060708;
  hello.max_unread_bytes = 0x55;
  EXPECT_EQ(Hex(Encode([&](FrameEncoder& e) { e.Hello(hello); })),
            "7073640201000000"
            "00000000"
            "00000000"
            "4000000000000000"
            "000102030405060708090a0b0c0d0e0f"
            "01000000"
            "03000000"
            "1100000000000000"
            "3322000000000000"
            "4400000000000000"
            "0807060504030201"
            "5500000000000000");
}

TEST(FrameGolden, Read) {
  EXPECT_EQ(Hex(Encode([](FrameEncoder& e) {
              e.Read({StreamRole::kWhole, 0x0102});
            })),
            "707364020e000000"
            "00000000"
            "00000000"
            "0c00000000000000"
            "02000000"
            "0201000000000000");
}

TEST(FrameGolden, Message) {
  EXPECT_EQ(Hex(Encode([](FrameEncoder& e) { e.Whole(Sample()); })),
            "7073640202000000"
            "02000000"
            "03000000"
            "1e00000000000000"
            "0300000000000000"
            "0000000000000000"
            "0100000000000000"
            "6869"
            "616263"
            "7a");
}

TEST(FrameGolden, AnnounceAndPiece) {
  AnnounceFrame announce{7, 65536, {2, {3, 0, 1}}};
  EXPECT_EQ(Hex(Encode([&](FrameEncoder& e) { e.Announce(announce); })),
            "7073640203000000"
            "02000000"
            "03000000"
            "2800000000000000"
            "0700000000000000"
            "0000010000000000"
            "0300000000000000"
            "0000000000000000"
            "0100000000000000");
  PieceCursor cursor;
  Message message = Sample();
  EXPECT_EQ(Hex(Encode([&](FrameEncoder& e) { e.Piece(7, message, 4, &cursor); })),
            "7073640204000000"
            "00000000"
            "00000000"
            "1400000000000000"
            "0700000000000000"
            "0000000000000000"
            "68696162");
  EXPECT_EQ(Hex(Encode([&](FrameEncoder& e) { e.Piece(7, message, 2, &cursor); })),
            "7073640204000000"
            "00000000"
            "00000000"
            "1200000000000000"
            "0700000000000000"
            "0400000000000000"
            "637a");
}

TEST(FrameGolden, SmallOnes) {
  EXPECT_EQ(Hex(Encode([](FrameEncoder& e) { e.Ack(9); })),
            "7073640205000000"
            "00000000"
            "00000000"
            "0800000000000000"
            "0900000000000000");
  EXPECT_EQ(Hex(Encode([](FrameEncoder& e) { e.OpenBulk(); })),
            "7073640206000000"
            "00000000"
            "00000000"
            "0000000000000000");
  EXPECT_EQ(Hex(Encode([](FrameEncoder& e) { e.Goodbye(); })),
            "7073640207000000"
            "00000000"
            "00000000"
            "0000000000000000");
  EXPECT_EQ(Hex(Encode([](FrameEncoder& e) { e.Room(9); })),
            "7073640208000000"
            "00000000"
            "00000000"
            "0800000000000000"
            "0900000000000000");
}

// Lends the first buffer of Sample.
const std::vector<LentBuffer> kLentSample = {{5, 128, 3}, {0, 0, 0}, {0, 0, 1}};

TEST(FrameGolden, Lent) {
  EXPECT_EQ(Hex(Encode([](FrameEncoder& e) { e.Lent(9, Sample(), kLentSample); })),
            "7073640209000000"
            "02000000"
            "03000000"
            "5300000000000000"
            "0900000000000000"
            "050000000000000080000000000000000300000000000000"
            "000000000000000000000000000000000000000000000000"
            "000000000000000000000000000000000100000000000000"
            "6869"
            "7a");
}

TEST(FrameGolden, AboutLeasesAndSegments) {
  EXPECT_EQ(Hex(Encode([](FrameEncoder& e) {
              e.Returned({7, 8});
            })),
            "707364020a000000"
            "00000000"
            "00000000"
            "1000000000000000"
            "0700000000000000"
            "0800000000000000");
  EXPECT_EQ(Hex(Encode([](FrameEncoder& e) {
              e.Declined({7, 8});
            })),
            "707364020b000000"
            "00000000"
            "00000000"
            "1000000000000000"
            "0700000000000000"
            "0800000000000000");
  EXPECT_EQ(Hex(Encode([](FrameEncoder& e) { e.Gone(9); })),
            "707364020c000000"
            "00000000"
            "00000000"
            "0800000000000000"
            "0900000000000000");
  EXPECT_EQ(Hex(Encode([](FrameEncoder& e) { e.Forgotten(9); })),
            "707364020d000000"
            "00000000"
            "00000000"
            "0800000000000000"
            "0900000000000000");
}

TEST(Frame, LentFramesComeBackAsTheyWent) {
  const std::string wire = Encode([](FrameEncoder& e) { e.Lent(9, Sample(), kLentSample); });
  absl::string_view bytes = wire;
  const auto frame = DecodeFirst(&bytes);
  ASSERT_TRUE(frame.ok() && frame->has_value()) << frame.status();
  LentFrame lent = std::get<LentFrame>(**frame);
  EXPECT_EQ(lent.lease, 9u);
  EXPECT_EQ(lent.header_bytes, 2u);
  ASSERT_EQ(lent.buffers.size(), 3u);
  EXPECT_EQ(lent.buffers[0].segment, 5u);
  EXPECT_EQ(lent.buffers[0].offset, 128u);
  EXPECT_EQ(lent.buffers[0].bytes, 3u);
  EXPECT_EQ(lent.buffers[2].segment, 0u);
  EXPECT_EQ(lent.buffers[2].bytes, 1u);
  std::string payload(lent.payload.remaining(), '\0');
  lent.payload.Read(payload.data(), payload.size());
  EXPECT_EQ(payload, "hiz");
}

TEST(Frame, NumbersOfAFrameAreKnownFromItsPreamble) {
  for (const std::string& wire :
       {Encode([](FrameEncoder& e) { e.Lent(9, Sample(), kLentSample); }),
        Encode([](FrameEncoder& e) { e.Whole(Sample()); }), Encode([](FrameEncoder& e) {
          e.Announce({7, 65536, {2, {3, 0, 1}}});
        })}) {
    const size_t numbers = NumberBytes(absl::string_view(wire).substr(0, kPreambleBytes));
    // Bytes behind the numbers decide nothing.
    std::string other = wire;
    for (size_t i = numbers; i < other.size(); ++i) other[i] = '\xff';
    EXPECT_TRUE(DecodeError(other).ok());
    EXPECT_GE(numbers, wire.size() < 60 ? size_t{24} : size_t{24 + 8 + 3 * 8});
  }
}

TEST(Frame, LentFramesThatLieAreRefused) {
  const auto error = [](uint64_t segment, uint64_t offset, size_t bytes) {
    return DecodeError(Encode([=](FrameEncoder& e) {
      Message message;
      message.buffers = {Buffer()};
      e.Lent(1, message, {{segment, offset, bytes}});
    }));
  };
  EXPECT_TRUE(error(5, 64, 100).ok());
  EXPECT_FALSE(error(5, 32, 100).ok());
  EXPECT_FALSE(error(0, 64, 0).ok());
  EXPECT_FALSE(error(0, 0, 100).ok());
  EXPECT_FALSE(error(0, 0, 0).ok());
  EXPECT_FALSE(error(5, 0, SIZE_MAX).ok());
  EXPECT_FALSE(error(5, 0, (size_t{4} << 30) + 1).ok());
  std::string wire = Encode([](FrameEncoder& e) { e.Lent(9, Sample(), kLentSample); });
  for (size_t size = 1; size < wire.size(); ++size) {
    EXPECT_FALSE(DecodeError(wire.substr(0, size)).ok()) << size;
  }
  std::string many = wire;
  many[12] = 4;
  EXPECT_FALSE(DecodeError(many).ok());
  std::string header = wire;
  header[8] = 3;
  EXPECT_FALSE(DecodeError(header).ok());
  Message large;
  large.header = std::string(kMaxLentFrameBytes, 'x');
  large.buffers = {Buffer()};
  EXPECT_FALSE(DecodeError(Encode([&](FrameEncoder& e) { e.Lent(1, large, {{5, 0, 10}}); })).ok());
}

TEST(Frame, ReturnedLeasesAreBounded) {
  const auto error = [](size_t leases) {
    const std::vector<uint64_t> ids(leases, 1);
    return DecodeError(Encode([&](FrameEncoder& e) { e.Returned(ids); }));
  };
  EXPECT_FALSE(error(0).ok());
  EXPECT_TRUE(error(kMaxReturned).ok());
  EXPECT_FALSE(error(kMaxReturned + 1).ok());
}

TEST(Frame, SeveralFramesAreReadFromAnyChunks) {
  std::string wire = Encode([](FrameEncoder& e) {
    e.Ack(1);
    e.Whole(Sample());
    e.Room(2);
    e.Goodbye();
  });
  for (size_t chunk = 1; chunk < 40; ++chunk) {
    std::vector<absl::string_view> chunks = {""};
    for (size_t at = 0; at < wire.size(); at += chunk) {
      chunks.push_back(absl::string_view(wire).substr(at, chunk));
    }
    FrameDecoder decoder(ByteReader(chunks), Limits{});
    auto first = decoder.Next();
    ASSERT_TRUE(first.ok() && first->has_value());
    EXPECT_EQ(std::get<AckFrame>(**first).transfer, 1u);
    auto second = decoder.Next();
    ASSERT_TRUE(second.ok() && second->has_value());
    MessageFrame message = std::get<MessageFrame>(**second);
    EXPECT_EQ(message.shape, ShapeOf(Sample()));
    std::string payload(message.payload.remaining(), '\0');
    message.payload.Read(payload.data(), payload.size());
    EXPECT_EQ(payload, "hiabcz");
    auto third = decoder.Next();
    ASSERT_TRUE(third.ok() && third->has_value());
    EXPECT_EQ(std::get<RoomFrame>(**third).transfer, 2u);
    auto fourth = decoder.Next();
    ASSERT_TRUE(fourth.ok() && fourth->has_value());
    EXPECT_TRUE(std::holds_alternative<GoodbyeFrame>(**fourth));
    auto end = decoder.Next();
    ASSERT_TRUE(end.ok());
    EXPECT_FALSE(end->has_value());
  }
}

TEST(Frame, EveryTruncationIsRefused) {
  std::string wire = Encode([](FrameEncoder& e) { e.Whole(Sample()); });
  for (size_t size = 1; size < wire.size(); ++size) {
    EXPECT_EQ(DecodeError(wire.substr(0, size)).code(), absl::StatusCode::kInvalidArgument) << size;
  }
}

TEST(Frame, DamagedPreamblesAreRefused) {
  std::string good = Encode([](FrameEncoder& e) { e.Ack(1); });
  EXPECT_TRUE(DecodeError(good).ok());
  for (size_t at : {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] + 50);
    EXPECT_EQ(DecodeError(bad).code(), absl::StatusCode::kInvalidArgument) << at;
  }
}

TEST(Frame, SizesThatLieAreRefused) {
  std::string wire = Encode([](FrameEncoder& e) { e.Announce({7, 65536, {2, {3, 5}}}); });
  std::string overflow = wire;
  for (size_t i = 0; i < 8; ++i) overflow[24 + 16 + i] = '\xff';
  EXPECT_FALSE(DecodeError(overflow).ok());
  std::string many = wire;
  many[12] = '\x7f';  // now there are more buffers than sizes
  EXPECT_FALSE(DecodeError(many).ok());
  Limits limits;
  limits.max_message_bytes = 9;
  EXPECT_FALSE(DecodeError(wire, limits).ok());
  limits.max_message_bytes = 10;
  EXPECT_TRUE(DecodeError(wire, limits).ok());
  limits.max_buffers = 1;
  EXPECT_FALSE(DecodeError(wire, limits).ok());
}

TEST(Frame, OneFrameHoldsTwoMebibytes) {
  Message message;
  message.buffers.push_back(Buffer::FromString(std::string(kMaxWholeBytes, 'x')));
  EXPECT_TRUE(DecodeError(Encode([&](FrameEncoder& e) { e.Whole(message); })).ok());
  message.header = "x";
  EXPECT_EQ(DecodeError(Encode([&](FrameEncoder& e) { e.Whole(message); })).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Frame, LargePayloadsAreReferenced) {
  Message message;
  message.buffers.push_back(Buffer::FromString(std::string(FrameEncoder::kReferenceBytes, 'x')));
  FrameEncoder encoder;
  encoder.Whole(message);
  std::vector<Buffer> parts = encoder.Take();
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[1].data(), message.buffers[0].data());
  EXPECT_TRUE(encoder.empty());
}

TEST(Frame, CheckShapeNamesTheLimit) {
  Limits limits;
  limits.max_header_bytes = 5;
  absl::Status status = CheckShape({6, {}}, limits);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("max_header_bytes = 5"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace psd::carrier
