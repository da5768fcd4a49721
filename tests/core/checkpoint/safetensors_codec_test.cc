#include "core/checkpoint/safetensors_codec.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::checkpoint {
namespace {

using ::testing::HasSubstr;

std::vector<TensorSpec> TwoTensors() {
  return {{"w", DType::kF32, Shape{2, 3}}, {"b", DType::kI64, Shape{1}}};
}

// Decodes the header `text` of a file whose elements take `data_bytes`.
absl::StatusOr<SafetensorsHeader> Decode(const std::string& text, uint64_t data_bytes) {
  return DecodeSafetensorsHeader(text, kSafetensorsPrefixBytes + text.size() + data_bytes);
}

std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape,
                      ",\"data_offsets\":", offsets, "}");
}

TEST(SafetensorsCodec, GoldenBytes) {
  auto header = EncodeSafetensorsHeader(TwoTensors(), {{"format", "pt"}});
  ASSERT_TRUE(header.ok()) << header.status();
  const std::string json = R"({"__metadata__":{"format":"pt"},)"
                           R"("b":{"data_offsets":[24,32],"dtype":"I64","shape":[1]},)"
                           R"("w":{"data_offsets":[0,24],"dtype":"F32","shape":[2,3]}})";
  const size_t padded = (json.size() + 7) / 8 * 8;
  std::string expected(8, '\0');
  expected[0] = static_cast<char>(padded);
  EXPECT_EQ(*header, expected + json + std::string(padded - json.size(), ' '));
}

TEST(SafetensorsCodec, ReadsWhatItWrites) {
  auto bytes = EncodeSafetensorsHeader(TwoTensors(), {{"format", "pt"}});
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const uint64_t file_bytes = bytes->size() + 32;
  auto length = SafetensorsHeaderLength(*bytes, file_bytes);
  ASSERT_TRUE(length.ok()) << length.status();
  ASSERT_EQ(*length, bytes->size() - kSafetensorsPrefixBytes);
  auto header = DecodeSafetensorsHeader(bytes->substr(kSafetensorsPrefixBytes), file_bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "w");
  EXPECT_EQ(header->tensors[0].shape, (Shape{2, 3}));
  EXPECT_EQ(header->tensors[0].offset, bytes->size());
  EXPECT_EQ(header->tensors[0].bytes, 24u);
  EXPECT_EQ(header->tensors[1].type->dtype, DType::kI64);
  EXPECT_EQ(header->tensors[1].offset, bytes->size() + 24);
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST(SafetensorsCodec, NoTensors) {
  EXPECT_TRUE(Decode("{}", 0).ok());
  EXPECT_FALSE(Decode("{}", 1).ok());
  // Two tensors without elements may be at the same place.
  EXPECT_TRUE(Decode(absl::StrCat("{", Entry("a", "F32", "[0]", "[0,0]"), ",",
                                  Entry("b", "F32", "[0]", "[0,0]"), "}"),
                     0)
                  .ok());
}

TEST(SafetensorsCodec, RefusesWhatCannotBeWritten) {
  const TensorSpec w{"w", DType::kF32, Shape{1}};
  EXPECT_FALSE(EncodeSafetensorsHeader({w, w}, {}).ok());
  EXPECT_FALSE(EncodeSafetensorsHeader({{"__metadata__", DType::kF32, Shape{1}}}, {}).ok());
  EXPECT_FALSE(EncodeSafetensorsHeader({{"\xff", DType::kF32, Shape{1}}}, {}).ok());
}

TEST(SafetensorsCodec, HeaderLengthsBeyondTheFileOrTheLimit) {
  EXPECT_FALSE(SafetensorsHeaderLength("", 0).ok());
  EXPECT_FALSE(SafetensorsHeaderLength("1234567", 7).ok());
  EXPECT_FALSE(SafetensorsHeaderLength(std::string(8, '\xff'), uint64_t{1} << 40).ok());
  std::string prefix(8, '\0');
  prefix[0] = 9;
  EXPECT_FALSE(SafetensorsHeaderLength(prefix, 16).ok());
  EXPECT_TRUE(SafetensorsHeaderLength(prefix, 17).ok());
  prefix[4] = 1;  // 4 GiB
  EXPECT_FALSE(SafetensorsHeaderLength(prefix, uint64_t{1} << 40).ok());
}

struct Hostile {
  std::string name;
  std::string text;
  uint64_t data_bytes;
  std::string says;
};

class HostileHeader : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileHeader, IsRefused) {
  auto header = Decode(GetParam().text, GetParam().data_bytes);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(header.status().message()), HasSubstr(GetParam().says));
}

std::string One(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat("{", Entry("a", dtype, shape, offsets), "}");
}
std::string Two(const std::string& first, const std::string& second) {
  return absl::StrCat("{", Entry("a", "F32", "[1]", first), ",", Entry("b", "F32", "[1]", second),
                      "}");
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileHeader,
    ::testing::Values(
        Hostile{"NotJson", "{", 0, "not valid JSON"}, Hostile{"List", "[]", 0, "no JSON object"},
        Hostile{"BadUtf8", "{\"\xff\":1}", 0, "not valid JSON"},
        Hostile{"Deep", std::string(100'000, '['), 0, "nests deeper"},
        Hostile{"NotATensor", "{\"a\":1}", 0, "not a JSON object"},
        Hostile{"NoDtype", R"({"a":{"shape":[],"data_offsets":[0,4]}})", 4, "no \"dtype\""},
        Hostile{"UnknownDtype", One("F33", "[1]", "[0,4]"), 4, "unknown dtype 'F33'"},
        Hostile{"NegativeExtent", One("F32", "[-1]", "[0,4]"), 4, "extent -1"},
        Hostile{"FractionalExtent", One("F32", "[1.5]", "[0,4]"), 4, "extent 1.5"},
        Hostile{"HugeExtent", One("F32", "[18446744073709551615]", "[0,4]"), 4, "extent 1844"},
        Hostile{"OverflowingShape", One("F32", "[4294967296,4294967296,4]", "[0,4]"), 4,
                "bad shape"},
        Hostile{"ManyAxes", One("F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]"), 4,
                "17 axes"},
        Hostile{"OneOffset", One("F32", "[1]", "[0]"), 4, "two whole numbers"},
        Hostile{"NegativeOffset", One("F32", "[1]", "[-4,0]"), 4, "two whole numbers"},
        Hostile{"BackwardOffsets", One("F32", "[1]", "[4,0]"), 4, "[4, 0)"},
        Hostile{"BeyondTheFile", One("F32", "[2]", "[0,8]"), 4, "cut short"},
        Hostile{"OverflowingOffset",
                One("F32", "[1]", "[18446744073709551612,18446744073709551615]"), 4, "cut short"},
        Hostile{"WrongSize", One("F32", "[3]", "[0,8]"), 8, "needs 12"},
        Hostile{"Overlap", Two("[0,4]", "[2,6]"), 6, "overlaps"},
        Hostile{"SamePlace", Two("[0,4]", "[0,4]"), 4, "overlaps"},
        Hostile{"Gap", Two("[0,4]", "[8,12]"), 12, "gap of 4"},
        Hostile{"GapAtTheStart", One("F32", "[1]", "[4,8]"), 8, "gap of 4"},
        Hostile{"RestBelongsToNone", One("F32", "[1]", "[0,4]"), 5, "1 bytes behind"},
        Hostile{
            "SameName",
            "{" + Entry("a", "F32", "[1]", "[0,4]") + "," + Entry("a", "F32", "[1]", "[4,8]") + "}",
            8, "\"a\" twice"},
        Hostile{"SameKey", R"({"a":{"dtype":"F32","dtype":"F64","shape":[],"data_offsets":[0,4]}})",
                4, "\"dtype\" twice"},
        Hostile{"MetadataOfNumbers", R"({"__metadata__":{"a":1}})", 0, "not a string"}),
    [](const auto& info) { return info.param.name; });

TEST(SafetensorsCodec, ListsTypesThatItCannotLoad) {
  auto header = Decode(One("F8_E4M3", "[4]", "[0,4]"), 4);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_FALSE(header->tensors[0].type->dtype.has_value());
}

}  // namespace
}  // namespace psd::checkpoint
