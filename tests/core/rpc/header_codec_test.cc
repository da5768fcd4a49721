#include "core/rpc/header_codec.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace psd::rpc {
namespace {

Header FullRequest() {
  Header header;
  header.kind = MessageKind::kRequest;
  header.method = "value.fetch";
  header.call_id = 300;
  header.timeout_us = 1'000'000;
  header.callee_incarnation = 0x1122334455667788;
  header.epoch = 3;
  header.sequence = 12;
  header.ack = Ack{9, {11, 11, 13, 20}};
  header.attachments = {{1, "fork"}, {2, std::string("\0\xff", 2)}};
  header.payload = "payload";
  return header;
}

TEST(HeaderCodec, GoldenBytes) {
  EXPECT_EQ(absl::BytesToHexString(EncodeHeader(FullRequest())),
            "0804120b76616c75652e666574636818ac0220c0843d318877665544332211"
            "3803400c480952040b0b0d147a0201028201"
            "04666f726b82010200ffba01077061796c6f6164");
}

TEST(HeaderCodec, RoundTrip) {
  auto decoded = DecodeHeader(EncodeHeader(FullRequest()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->method, "value.fetch");
  EXPECT_EQ(decoded->sequence, 12u);
  EXPECT_EQ(decoded->ack.ranges, (std::vector<uint64_t>{11, 11, 13, 20}));
  ASSERT_EQ(decoded->attachments.size(), 2u);
  EXPECT_EQ(decoded->attachments[1].bytes, std::string("\0\xff", 2));
  EXPECT_EQ(EncodeHeader(*decoded), EncodeHeader(FullRequest()));
}

TEST(HeaderCodec, AWorkerThatIsCalledWhatNoWorkerMayBeIsRefused) {
  Header hello;
  hello.kind = MessageKind::kHello;
  hello.name = "owner-1";
  hello.incarnation = 7;
  hello.sequence = 1;
  EXPECT_TRUE(DecodeHeader(EncodeHeader(hello)).ok());
  for (const char* name : {"a\nb", "../owner1", "owner 1"}) {
    hello.name = name;
    EXPECT_EQ(DecodeHeader(EncodeHeader(hello)).status().code(), absl::StatusCode::kInvalidArgument)
        << name;
  }
}

TEST(HeaderCodec, StatusKeepsItsDetail) {
  Header header;
  header.kind = MessageKind::kReply;
  header.call_id = 1;
  header.status = WithDetail(absl::AbortedError("restarted"), {"owner0", "w", "look up", true});
  auto decoded = DecodeHeader(EncodeHeader(header));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(GetDetail(decoded->status), (ErrorDetail{"owner0", "w", "look up", true}));
}

TEST(HeaderCodec, BytesThatAreNoTextDoNotBreakAnError) {
  Header header;
  header.kind = MessageKind::kReply;
  header.call_id = 1;
  header.status = absl::InternalError("bad \xff byte");
  auto decoded = DecodeHeader(EncodeHeader(header));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->status.message(), "bad ? byte");
}

TEST(HeaderCodec, AnErrorThatQuotesMegabytesStillFits) {
  Header header;
  header.kind = MessageKind::kReply;
  header.call_id = 1;
  const std::string name(10 << 20, 'n');
  header.status =
      WithDetail(absl::NotFoundError("no " + name + "; look it up"), {name, name, name, false});
  const std::string bytes = EncodeHeader(header);
  EXPECT_LT(bytes.size(), 32u << 10);
  auto decoded = DecodeHeader(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::EndsWith(decoded->status.message(), "; look it up"));
}

// A receiver that has no room for a message still tells the sender so.
TEST(HeaderCodec, TheBeginningOfARequestSaysWhichCallItIs) {
  Header request = FullRequest();
  request.payload.assign(1000, 'p');
  const std::string bytes = EncodeHeader(request);
  const size_t needed = bytes.find("fork");  // the first attachment
  for (size_t size = needed; size <= bytes.size(); ++size) {
    const auto cut = DecodeBeginning(bytes.substr(0, size));
    ASSERT_TRUE(cut.ok()) << size << " " << cut.status();
    EXPECT_TRUE(cut->cut);
    EXPECT_TRUE(cut->attachments.empty());
    EXPECT_EQ(cut->method, request.method);
    EXPECT_EQ(cut->call_id, request.call_id);
    EXPECT_EQ(cut->epoch, request.epoch);
    EXPECT_EQ(cut->sequence, request.sequence);
    EXPECT_EQ(cut->attempt, request.attempt);
  }
}

TEST(HeaderCodec, ACutMessageOfControlIsAnError) {
  Header keepalive;
  keepalive.kind = MessageKind::kKeepalive;
  keepalive.ack = {0, {2, 2, 4, 4}};
  const std::string bytes = EncodeHeader(keepalive);
  EXPECT_TRUE(DecodeHeader(bytes).ok());
  EXPECT_FALSE(DecodeBeginning(bytes).ok());
}

TEST(HeaderCodec, RefusesWhatNoHonestPeerSends) {
  EXPECT_FALSE(DecodeHeader("").ok());
  EXPECT_FALSE(DecodeHeader("\xff\xff\xff").ok());
  Header bad = FullRequest();
  bad.kind = static_cast<MessageKind>(13);
  EXPECT_FALSE(DecodeHeader(EncodeHeader(bad)).ok());
  bad = FullRequest();
  bad.call_id = 0;
  EXPECT_FALSE(DecodeHeader(EncodeHeader(bad)).ok());
  bad = FullRequest();
  bad.ack.ranges = {20, 13};
  EXPECT_FALSE(DecodeHeader(EncodeHeader(bad)).ok());
  bad = FullRequest();
  bad.ack.ranges = {13};
  EXPECT_FALSE(DecodeHeader(EncodeHeader(bad)).ok());
  bad = FullRequest();
  bad.method = std::string(kMaxMethodBytes + 1, 'm');
  EXPECT_FALSE(DecodeHeader(EncodeHeader(bad)).ok());
  bad = FullRequest();
  bad.kind = MessageKind::kHello;  // it has no name
  EXPECT_FALSE(DecodeHeader(EncodeHeader(bad)).ok());
}

}  // namespace
}  // namespace psd::rpc
