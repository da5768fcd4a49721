#include "core/rpc/parse_cost.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "proto/psd/v1/rpc.pb.h"
#include "proto/psd/v1/service.pb.h"

namespace psd::rpc {
namespace {

template <typename Message>
size_t CostOf(const Message& message) {
  return ParseCost(*Message::descriptor(), message.SerializeAsString());
}

// Expects that the cost covers the memory of the parsed message.
template <typename Message>
void ExpectCovers(const Message& message) {
  Message parsed;
  ASSERT_TRUE(parsed.ParseFromString(message.SerializeAsString()));
  EXPECT_GE(CostOf(message) + sizeof(Message), parsed.SpaceUsedLong());
}

TEST(ParseCost, CoversWhatParsingTakes) {
  v1::PullRequest names;
  for (int i = 0; i < 1000; ++i) names.add_names("");
  ExpectCovers(names);
  for (int i = 0; i < 1000; ++i) names.add_names(std::string(i, 'x'));
  ExpectCovers(names);

  v1::RpcHeader header;
  for (int i = 0; i < 1000; ++i) header.add_ack_ranges(i % 100);
  for (int i = 0; i < 1000; ++i) header.add_attachments("");
  header.set_payload(std::string(1 << 20, 'p'));
  ExpectCovers(header);

  v1::PullReply tensors;
  for (int i = 0; i < 1000; ++i) tensors.add_tensors();
  ExpectCovers(tensors);
  for (int i = 0; i < 100; ++i) {
    v1::TensorData& tensor = *tensors.add_tensors();
    for (int k = 0; k < 50; ++k) tensor.add_shape(k);
    tensor.set_elements(std::string(100, 'e'));
  }
  ExpectCovers(tensors);
}

TEST(ParseCost, OfLargeContentsIsLittleMoreThanTheirSize) {
  v1::TensorData tensor;
  tensor.set_elements(std::string(1 << 20, 'e'));
  EXPECT_LT(CostOf(tensor), (1u << 20) + 1000);
}

TEST(ParseCost, CoversFieldsThatTheTypeDoesNotKnow) {
  // RpcHeader has none of the field numbers 1000 and above.
  const std::string known = "\x08\x04";
  for (const std::string& unknown : {std::string("\xc0\x3e\x01"), std::string("\xc2\x3e\x00", 3),
                                     std::string("\xc3\x3e\xc4\x3e")}) {
    std::string bytes = known;
    for (int i = 0; i < 1000; ++i) bytes += unknown;
    v1::RpcHeader parsed;
    ASSERT_TRUE(parsed.ParseFromString(bytes));
    EXPECT_GE(ParseCost(*v1::RpcHeader::descriptor(), bytes) + sizeof(parsed),
              parsed.SpaceUsedLong());
  }
}

TEST(ParseCost, DamagedBytesEndTheWalk) {
  v1::PullReply tensors;
  tensors.add_tensors()->set_elements("abc");
  tensors.add_versions(7);
  const std::string bytes = tensors.SerializeAsString();
  for (size_t size = 0; size < bytes.size(); ++size) {
    for (int flipped = 0; flipped < 256; ++flipped) {
      std::string damaged = bytes.substr(0, size) + static_cast<char>(flipped);
      v1::PullReply parsed;
      const size_t cost = ParseCost(*v1::PullReply::descriptor(), damaged);
      if (parsed.ParseFromString(damaged)) {
        EXPECT_GE(cost + sizeof(parsed), parsed.SpaceUsedLong()) << size << " " << flipped;
      }
    }
  }
  // The nesting is deeper than parsers accept.
  std::string deep;
  for (int i = 0; i < 10000; ++i) deep += "\x0a\x7f";
  EXPECT_GT(ParseCost(*v1::PullReply::descriptor(), deep), 0u);
}

}  // namespace
}  // namespace psd::rpc
