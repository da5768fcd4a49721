// Messages of gradients that lend nonsense.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/device_sharing.h"
#include "core/base/future.h"
#include "core/rpc/rpc_agent.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/worker.pb.h"
#include "tests/core/dist_autograd/lent_gradients_fixture.h"

namespace psd::dist_autograd {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBytes = static_cast<size_t>(kElements) * sizeof(float);
constexpr uint32_t kLentTag = 5;  // of the attachment

class HostileLoansTest : public LentGradientsTest {
 protected:
  // Keeps a message of gradients that lends, which has not come.
  HostileLoansTest() {
    ShowAll();
    LoseLending();
    backward_ = StartBackward(3);
    RunUntil([this] { return !lost_.attachments.empty(); });
    network_.SetFilter(nullptr);
    EXPECT_TRUE(lent_.ParseFromString(Attachment(lost_)));
    // Loans of other numbers than the one that is recalled.
    for (v1::LentBlock& block : *lent_.mutable_blocks()) block.set_loan(block.loan() + 100);
  }

  static std::string& Attachment(rpc::Request& request) {
    for (rpc::Attachment& each : request.attachments)
      if (each.tag == kLentTag) return each.bytes;
    ADD_FAILURE() << "nothing is lent";
    return request.attachments[0].bytes;
  }
  absl::StatusOr<rpc::Reply> SendWith(const std::string& bytes) {
    rpc::Request request = lost_;
    Attachment(request) = bytes;
    return Send(std::move(request));
  }
  absl::StatusOr<rpc::Reply> SendWith(const v1::LentBuffers& lent) {
    return SendWith(lent.SerializeAsString());
  }

  Future<Unit> backward_;
  v1::LentBuffers lent_;
};

TEST_F(HostileLoansTest, NumbersThatNameNoEmptyBufferAreErrors) {
  std::vector<v1::LentBuffers> wrong(3, lent_);
  wrong[0].mutable_blocks(0)->set_number(1);
  wrong[1].mutable_blocks(0)->set_number(std::numeric_limits<uint32_t>::max());
  *wrong[2].add_blocks() = lent_.blocks(0);  // twice
  for (const v1::LentBuffers& each : wrong) {
    const absl::Status refused = SendWith(each).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("is lent as number"));
  }
  v1::LentBuffers to_nobody = lent_;
  to_nobody.clear_key();
  for (const std::string& bytes : {std::string(), std::string("\xff\xff"), std::string(100, 'x'),
                                   to_nobody.SerializeAsString()}) {
    const absl::Status refused = SendWith(bytes).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  }
  EXPECT_EQ(Collected(), 0);
}

TEST_F(HostileLoansTest, ABlockOfAnotherSizeThanTheGradientIsAnError) {
  for (const size_t bytes : {kBytes - sizeof(float), sizeof(float)}) {
    v1::LentBuffers wrong = lent_;
    wrong.mutable_blocks(0)->set_bytes(bytes);
    wrong.mutable_blocks(0)->set_loan(wrong.blocks(0).loan() + bytes);
    const absl::Status refused = SendWith(wrong).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  }
  EXPECT_EQ(Collected(), 0);
}

// No kernel could read it.
TEST_F(HostileLoansTest, AGradientThatIsNotAlignedIsAnError) {
  const std::shared_ptr<Block> larger = *trainer_.device->memory().Allocate(kBytes + 1);
  v1::LentBlock& unaligned = *lent_.mutable_blocks(0);
  unaligned.set_handle(*trainer_.device->sharing()->Export(*larger));
  unaligned.set_block_bytes(larger->size());
  unaligned.set_offset(1);
  const absl::Status refused = SendWith(lent_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << refused;
  EXPECT_EQ(Collected(), 0);
}

TEST_F(HostileLoansTest, ADeviceThatTheOwnerDoesNotHaveIsRefused) {
  lent_.set_identity("emulated:elsewhere:0");
  const absl::StatusOr<rpc::Reply> reply = SendWith(lent_);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(RefusalIn(reply).code(), absl::StatusCode::kFailedPrecondition) << RefusalIn(reply);
}

TEST_F(HostileLoansTest, ALoanWithoutANumberIsRefused) {
  lent_.mutable_blocks(0)->set_loan(0);
  const absl::StatusOr<rpc::Reply> reply = SendWith(lent_);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(RefusalIn(reply).code(), absl::StatusCode::kInvalidArgument) << RefusalIn(reply);
}

class HostileBlocksTest : public HostileLoansTest, public ::testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Blocks, HostileBlocksTest, ::testing::Range(0, 4));

TEST_P(HostileBlocksTest, BlocksThatAreNoBlocksAreRefused) {
  v1::LentBlock& block = *lent_.mutable_blocks(0);
  if (GetParam() == 0) block.set_handle("no handle");
  if (GetParam() == 1) block.set_handle(std::string(5000, 'h'));
  if (GetParam() == 2) block.set_offset(std::numeric_limits<uint64_t>::max());
  if (GetParam() == 3) block.set_block_bytes(std::numeric_limits<uint64_t>::max());
  const absl::StatusOr<rpc::Reply> reply = SendWith(lent_);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(RefusalIn(reply).code(), absl::StatusCode::kInvalidArgument) << RefusalIn(reply);
  EXPECT_EQ(Collected(), 0);
}

}  // namespace
}  // namespace psd::dist_autograd
