#include "client/ddp/push_outcome.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

Tensor BytesOf(const std::string& text) {
  return Tensor::Of<uint8_t>({static_cast<int64_t>(text.size())},
                             std::vector<uint8_t>(text.begin(), text.end()));
}

TEST(PushOutcomeTest, DDP_32_TheOutcomeThatAPusherTellsComesBack) {
  const absl::StatusOr<PushOutcome> good = DecodeOutcome(EncodeOutcome({absl::OkStatus(), 1024}));
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_TRUE(good->status.ok());
  EXPECT_EQ(good->loss_scale, 1024);

  ErrorDetail detail{"owner0", "w", "try\nagain", true};
  const absl::StatusOr<PushOutcome> bad = DecodeOutcome(
      EncodeOutcome({WithDetail(absl::UnavailableError("line 1\nline 2"), detail), 0.1}));
  ASSERT_TRUE(bad.ok()) << bad.status();
  EXPECT_EQ(bad->status,
            WithDetail(absl::UnavailableError("line 1\nline 2"), *GetDetail(bad->status)));
  detail.remedy = "try again";
  EXPECT_EQ(GetDetail(bad->status), detail);
  EXPECT_EQ(bad->loss_scale, 0.1);
}

TEST(PushOutcomeTest, DDP_32_BytesThatAreNoOutcomeAreRefused) {
  for (const char* text : {"", "0", "0\n0\n0\n\n\n", "17\n0\n0\n\n\n\n", "-1\n0\n0\n\n\n\n",
                           "x\n0\n0\n\n\n\n", "0\nx\n0\n\n\n\n", "0\n0\n2\n\n\n\n"}) {
    EXPECT_EQ(DecodeOutcome(BytesOf(text)).status().code(), absl::StatusCode::kInternal) << text;
  }
  EXPECT_TRUE(DecodeOutcome(BytesOf("0\n0\n0\n\n\n\n")).ok());
  EXPECT_EQ(DecodeOutcome(Tensor()).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(DecodeOutcome(Tensor::Scalar<float>(1)).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace psd
