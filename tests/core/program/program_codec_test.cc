#include "core/program/program_codec.h"

#include <string>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace psd::program {
namespace {

Program Example() {
  ProgramBuilder builder;
  auto a = builder.Input();
  auto b = builder.Input();
  Attributes attributes;
  attributes["axis"] = int64_t{-1};
  attributes["scale"] = 0.5;
  attributes["shape"] = std::vector<int64_t>{2, 3};
  auto c = builder.Call("mix", {a, b, a}, attributes);
  auto d = builder.Call("neg", {c});
  return *builder.Build({d, a});
}

TEST(ProgramCodec, ArrivesAsItWas) {
  auto decoded = DecodeProgram(EncodeProgram(Example()), {});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(FingerprintOf(*decoded), FingerprintOf(Example()));
  EXPECT_EQ(CanonicalBytes(*decoded), CanonicalBytes(Example()));
}

TEST(ProgramCodec, GoldenBytes) {
  EXPECT_EQ(absl::BytesToHexString(EncodeProgram(Example())),
            "080212146d6978617869737363616c6573686170656e65671a050304050503220200042a02030132"
            "0203003a040001000242030102034a030102035201025a030104066208000000000000e03f6a0203"
            "00");
}

TEST(ProgramCodec, NoTruncatedProgramIsAnother) {
  const std::string bytes = EncodeProgram(Example());
  for (size_t size = 0; size < bytes.size(); ++size) {
    auto decoded = DecodeProgram(bytes.substr(0, size), {});
    if (!decoded.ok()) continue;
    // Only whole columns at the end can be missing unnoticed: the results, or everything.
    EXPECT_TRUE(decoded->outputs.empty()) << size;
  }
}

TEST(ProgramCodec, LimitsHoldBeforeAnythingIsBuilt) {
  const std::string bytes = EncodeProgram(Example());
  ProgramLimits limits;
  limits.max_instructions = 1;
  EXPECT_EQ(DecodeProgram(bytes, limits).status().code(), absl::StatusCode::kResourceExhausted);
  limits = {};
  limits.max_inputs = 1;
  EXPECT_EQ(DecodeProgram(bytes, limits).status().code(), absl::StatusCode::kResourceExhausted);
  limits = {};
  limits.max_outputs = 1;
  EXPECT_EQ(DecodeProgram(bytes, limits).status().code(), absl::StatusCode::kResourceExhausted);
  limits = {};
  limits.max_attribute_items = 3;
  EXPECT_EQ(DecodeProgram(bytes, limits).status().code(), absl::StatusCode::kResourceExhausted);
  limits = {};
  limits.max_attributes = 2;
  EXPECT_EQ(DecodeProgram(bytes, limits).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ProgramCodec, ColumnsThatDisagreeAreRefused) {
  for (const char* extra : {"\x1a\x01\x01", "\x22\x01\x01", "\x2a\x01\x01", "\x32\x01\x01",
                            "\x3a\x01\x01", "\x42\x01\x01", "\x52\x01\x01", "\x5a\x01\x01"}) {
    auto decoded = DecodeProgram(EncodeProgram(Example()) + extra, {});
    EXPECT_FALSE(decoded.ok()) << absl::BytesToHexString(extra);
  }
}

}  // namespace
}  // namespace psd::program
