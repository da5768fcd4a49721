#include "core/checkpoint/index_codec.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "core/checkpoint/index_seal.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::checkpoint {
namespace {

using ::testing::HasSubstr;

CheckpointIndex Sample() {
  CheckpointIndex index;
  index.created = "2026-11-21T14:36:34Z";
  index.psd_version = "0.2.0";
  index.files = {{"values-owner0.safetensors", 128, std::string(32, 'a')},
                 {"state-owner0-0.safetensors", 256, std::string(32, '0')}};
  SavedValue w;
  w.owner = "owner0";
  w.name = "layer1/weight";
  w.dtype = DType::kF32;
  w.shape = Shape{2, 3};
  w.requires_grad = true;
  w.version = 7;
  w.file = "values-owner0.safetensors";
  index.values.push_back(w);
  SavedOptimizer adam;
  adam.name = "main";
  adam.type = "adam";
  adam.groups = {{{{"lr", 0.1}, {"beta1", 0.9}}, {{"lr", 0.5}, {"beta1", 0.9}}}};
  adam.settings = {{"mode.kind", 1}};
  adam.loss_scale = 1024;
  adam.good_steps = 17;
  adam.steps_accepted = 6;
  adam.parts = {{"owner0", "00000000000000aa/12", 6}};
  const std::string file = "state-owner0-0.safetensors";
  adam.parameters.push_back(
      {"owner0", "layer1/weight", 0, 6, {{"exp_avg", file}, {"exp_avg_sq", file}}, file});
  index.optimizers.push_back(adam);
  index.left_out = {"owner0: 'notes' (string)"};
  return index;
}

constexpr char kGolden[] = R"json({
 "format": "psd checkpoint",
 "format_version": 2,
 "created": "2026-11-21T14:36:34Z",
 "psd_version": "0.2.0",
 "files": [
  {
   "name": "values-owner0.safetensors",
   "bytes": 128,
   "xxh128": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
  },
  {
   "name": "state-owner0-0.safetensors",
   "bytes": 256,
   "xxh128": "00000000000000000000000000000000"
  }
 ],
 "values": [
  {
   "owner": "owner0",
   "name": "layer1/weight",
   "kind": "parameter",
   "dtype": "F32",
   "shape": [
    2,
    3
   ],
   "requires_grad": true,
   "version": 7,
   "file": "values-owner0.safetensors"
  }
 ],
 "optimizers": [
  {
   "name": "main",
   "type": "adam",
   "groups": [
    {
     "options": {
      "beta1": 0.9,
      "lr": 0.1
     },
     "created_with": {
      "beta1": 0.9,
      "lr": 0.5
     }
    }
   ],
   "settings": {
    "mode.kind": 1.0
   },
   "loss_scale": 1024.0,
   "good_steps": 17,
   "steps_accepted": 6,
   "parts": [
    {
     "owner": "owner0",
     "life": "00000000000000aa/12",
     "steps_accepted": 6
    }
   ],
   "parameters": [
    {
     "owner": "owner0",
     "name": "layer1/weight",
     "group": 0,
     "steps": 6,
     "slots": [
      {
       "name": "exp_avg",
       "file": "state-owner0-0.safetensors"
      },
      {
       "name": "exp_avg_sq",
       "file": "state-owner0-0.safetensors"
      }
     ],
     "file": "state-owner0-0.safetensors"
    }
   ]
  }
 ],
 "left_out": [
  "owner0: 'notes' (string)"
 ],
 "index_xxh128": "703648b0824f3217c31ed3ea826c8117"
}
)json";

// Replaces the checksum of `text` by the one of its present contents.
std::string Resealed(absl::string_view text) {
  return SealIndex(absl::StrCat(text.substr(0, text.find(",\n \"index_xxh128")), "\n}"));
}

TEST(IndexCodec, GoldenText) {
  EXPECT_EQ(EncodeIndex(Sample()), kGolden);
}

TEST(IndexCodec, ReadsWhatItWrites) {
  auto index = DecodeIndex(kGolden);
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(EncodeIndex(*index), kGolden);
  EXPECT_EQ(index->optimizers[0].groups[0].options.at("lr"), 0.1);
}

TEST(IndexCodec, OptionsKeepEveryBit) {
  CheckpointIndex index = Sample();
  index.optimizers[0].groups[0].options["lr"] = 1.0 / 3;
  auto again = DecodeIndex(EncodeIndex(index));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->optimizers[0].groups[0].options.at("lr"), 1.0 / 3);
}

TEST(IndexCodec, AnotherVersionIsNamed) {
  auto index = DecodeIndex(
      absl::StrReplaceAll(kGolden, {{"\"format_version\": 2", "\"format_version\": 3"}}));
  EXPECT_EQ(index.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(index.status().message()), HasSubstr("version 3"));
}

TEST(IndexCodec, OneOptionChangedByHandIsFound) {
  auto index = DecodeIndex(absl::StrReplaceAll(kGolden, {{"\"lr\": 0.1", "\"lr\": 4.1"}}));
  EXPECT_EQ(index.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(index.status().message()), HasSubstr("damaged"));
}

struct Hostile {
  std::string name;
  std::string from;  // a part of the golden text
  std::string to;
  std::string says;
};

class HostileIndex : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileIndex, IsRefused) {
  const std::string text =
      Resealed(absl::StrReplaceAll(kGolden, {{GetParam().from, GetParam().to}}));
  ASSERT_NE(text, kGolden);
  auto index = DecodeIndex(text);
  ASSERT_FALSE(index.ok());
  EXPECT_EQ(index.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(index.status().message()), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileIndex,
    ::testing::Values(
        Hostile{"NotJson", "\"files\": [", "\"files\": ", "not valid JSON"},
        Hostile{"ForeignFormat", "psd checkpoint", "checkpoint", "not psd's"},
        Hostile{"ParentFolder", "values-owner0.safetensors", "../values", "names the file"},
        Hostile{"OtherFolder", "values-owner0.safetensors", "a/b", "names the file"},
        Hostile{"AbsolutePath", "values-owner0.safetensors", "/etc/passwd", "names the file"},
        Hostile{"HiddenFile", "values-owner0.safetensors", ".values", "names the file"},
        Hostile{"TheIndexItself", "values-owner0.safetensors", "index.json", "names the file"},
        Hostile{"NoName", "values-owner0.safetensors", "", "names the file"},
        Hostile{"EndOfText", "values-owner0.safetensors", "values\\u0000", "names the file"},
        Hostile{"FileTwice", "state-owner0-0.safetensors", "values-owner0.safetensors", "twice"},
        Hostile{"ShortDigest", "00000000000000000000000000000000", "00", "32 hexadecimal"},
        Hostile{"NegativeSize", "\"bytes\": 128", "\"bytes\": -1", "whole number"},
        Hostile{"UnlistedFile", "\"file\": \"values-owner0.safetensors\"", "\"file\": \"x\"",
                "does not list"},
        Hostile{"UnlistedStateFile", "\"file\": \"state-owner0-0.safetensors\"", "\"file\": \"x\"",
                "does not list"},
        Hostile{"UnknownKind", "\"kind\": \"parameter\"", "\"kind\": \"thing\"", "unknown kind"},
        Hostile{"StateOfATensor", "\"kind\": \"parameter\"", "\"kind\": \"tensor\"",
                "no parameter"},
        Hostile{"IntegerParameter", "\"dtype\": \"F32\"", "\"dtype\": \"I64\"", "not floating"},
        Hostile{"UnknownDtype", "\"dtype\": \"F32\"", "\"dtype\": \"X\"", "unknown dtype"},
        Hostile{"RowsOfOneAxis",
                "\"parameter\",\n   \"dtype\": \"F32\",\n   \"shape\": [\n    2,\n",
                "\"rows\",\n   \"dtype\": \"F32\",\n   \"shape\": [\n", "table of rows"},
        Hostile{"NoRows", "\"parameter\",\n   \"dtype\": \"F32\",\n   \"shape\": [\n    2",
                "\"rows\",\n   \"dtype\": \"F32\",\n   \"shape\": [\n    0", "table of rows"},
        Hostile{"OverflowingShape", "    2,\n    3", "4611686018427387904, 3", "bad shape"},
        Hostile{"NegativeExtent", "    2,\n    3", "-2", "no whole number"},
        Hostile{"BlankName", "\"layer1/weight\"", "\"layer1 weight\"", "unprintable"},
        Hostile{"GroupThatIsNot", "\"group\": 0", "\"group\": 1", "group"},
        Hostile{"PartElsewhere", "\"owner\": \"owner0\",\n     \"life\"",
                "\"owner\": \"owner1\",\n     \"life\"", "other owners"},
        Hostile{"PartTwice", "   \"parts\": [",
                "   \"parts\": [{\"owner\": \"owner0\", \"life\": \"\", \"steps_accepted\": 0},",
                "two parts"},
        Hostile{"TooManySteps", "\"steps\": 6", "\"steps\": 9223372036854775808", "too many steps"},
        Hostile{"SlotTwice", "\"exp_avg_sq\"", "\"exp_avg\"", "twice"},
        Hostile{"StepAsSlot", "\"exp_avg_sq\"", "\"step\"", "twice"},
        Hostile{"TextForANumber", "\"lr\": 0.1", "\"lr\": \"0.1\"", "no number"},
        Hostile{"NullForANumber", "\"version\": 7", "\"version\": null", "whole number"},
        Hostile{"MemberTwice", "\"version\": 7", "\"version\": 7, \"version\": 8", "twice"},
        Hostile{"MissingMember", "\"version\": 7,", "", "no \"version\""}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace psd::checkpoint
