// What an owner answers to made-up requests for pieces of a parameter on a device.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/psd.h"
#include "core/base/buffer.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device_pieces/device_pulls.h"
#include "core/device_pieces/piece_methods.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/message_io.h"
#include "core/rpc/rpc_agent.h"
#include "core/runtime/runtime.h"
#include "core/services/values/value_methods.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/worker.pb.h"
#include "tests/client/test_world.h"
#include "tests/device/device_owner.h"
#include "tests/device/stall.h"
#include "tests/device/test_device.h"

namespace psd {
namespace {

using device_pieces::DevicePulls;
using device_pieces::kPieceBytes;
using ::testing::HasSubstr;

// The parameter has two pieces and a short one.
constexpr size_t kBytes = 2 * kPieceBytes + 12;
constexpr size_t kElements = kBytes / sizeof(float);
constexpr size_t kPinnedPieces = DevicePulls::kPinnedPerSession + 4;

class PullRequestsTest : public ::testing::Test {
 protected:
  PullRequestsTest() {
    for (TestOwner* each : {&stranger_, &other_}) {
      rpc::RpcAgent& agent = each->runtime().agent();
      agent.AddPeer("owner", host_.owner().address().address);
      Must(agent.Connect("owner", {}).Wait());
    }
    std::iota(elements_.begin(), elements_.end(), 1.0f);
    CreateOptions options;
    options.requires_grad = true;
    options.device = "emu:0";
    constexpr auto kCount = static_cast<int64_t>(kElements);
    const RRef w = Must(trainer_->GetOrCreate("owner", "w", Full({kCount}, 0), options));
    Must(trainer_->Assign(w, Tensor::Of({kCount}, elements_)));
    id_ = w.value_id();
  }

  // Begins a pull and returns its id; 0 if the answer has everything.
  uint64_t Begin(TestOwner& from) {
    v1::FetchRequest request;
    request.add_incarnations(id_.incarnation);
    request.add_counters(id_.counter);
    request.set_in_pieces(true);
    const rpc::Reply reply = Must(
        rpc::Ask(from.runtime().agent(), services::kValueFetch, {"owner"}, request, {}).Wait());
    const std::string* const left_out = reply.attachment(device_pieces::kLeftOutTag);
    if (left_out == nullptr) return 0;
    const auto parsed = Must(rpc::ParseMessage<v1::LeftOut>(*left_out, "the test"));
    EXPECT_EQ(parsed.bytes(0), kBytes);
    return parsed.pull();
  }
  Future<rpc::Reply> Ask(TestOwner& from, uint64_t pull, uint32_t number, uint64_t offset,
                         uint32_t bytes) {
    v1::PullPieceRequest request;
    request.set_pull(pull);
    request.set_number(number);
    request.set_offset(offset);
    request.set_bytes(bytes);
    return rpc::Ask(from.runtime().agent(), device_pieces::kValuePiece, {"owner"}, request, {});
  }
  // As Ask, and waits. Expects that a piece has the bytes that were asked for.
  absl::Status Get(TestOwner& from, uint64_t pull, uint32_t number, uint64_t offset,
                   uint32_t bytes) {
    const auto reply = Ask(from, pull, number, offset, bytes).Wait();
    if (reply.ok()) ExpectPiece(*reply, offset, bytes);
    return reply.status();
  }
  void ExpectPiece(const rpc::Reply& reply, uint64_t offset, uint32_t bytes) {
    ASSERT_EQ(reply.payload.buffers.size(), 1u);
    const auto* const all = reinterpret_cast<const std::byte*>(elements_.data());
    const Buffer& piece = reply.payload.buffers[0];
    ASSERT_EQ(piece.size(), bytes);
    EXPECT_TRUE(std::equal(piece.data(), piece.data() + bytes, all + offset));
  }
  absl::Status End(TestOwner& from, uint64_t pull) {
    v1::PullEnd end;
    end.set_pull(pull);
    return rpc::Ask(from.runtime().agent(), device_pieces::kValueEndPull, {"owner"}, end, {})
        .Wait()
        .status();
  }
  EmulatedDevice& device() { return host_.device(); }

  DeviceOwner host_{"owner", testing::NewTestDevices(1, /*seed=*/0, size_t{64} << 20,
                                                     kPinnedPieces* kPieceBytes)[0]};
  TestOwner stranger_{"stranger"}, other_{"other"};
  std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {host_.owner().address()});
  std::vector<float> elements_ = std::vector<float>(kElements);
  GlobalId id_;
};

TEST_F(PullRequestsTest, BytesThatWereNotLeftOutAreRefused) {
  constexpr auto kMost = std::numeric_limits<uint64_t>::max();
  constexpr auto kMostBytes = std::numeric_limits<uint32_t>::max();
  struct Bad {
    uint32_t number;
    uint64_t offset;
    uint32_t bytes;
  };
  const std::vector<Bad> all = {
      {0, 0, 0},          {0, 0, kPieceBytes + 1},
      {0, 0, kMostBytes}, {0, kBytes, 1},
      {0, kBytes - 1, 2}, {0, kBytes + 1, 1},
      {0, kMost, 1},  // what a negative number becomes
      {0, kMost - 3, 8},  {0, kMost - kMostBytes + 1, kMostBytes},
      {1, 0, 1},          {kMostBytes, 0, 1},
  };
  const uint64_t pull = Begin(stranger_);
  for (const Bad& bad : all) {
    const absl::Status refused = Get(stranger_, pull, bad.number, bad.offset, bad.bytes);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument)
        << bad.number << " " << bad.offset << " " << bad.bytes << ": " << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("a piece has 1 to 1048576"));
  }
  EXPECT_TRUE(Get(stranger_, pull, 0, 0, kPieceBytes).ok());
  EXPECT_EQ(device().pinned_peak_bytes(), kPieceBytes);
}

TEST_F(PullRequestsTest, PiecesMayOverlapAndComeAgainAndInAnyOrder) {
  const uint64_t pull = Begin(stranger_);
  EXPECT_TRUE(Get(stranger_, pull, 0, 2 * kPieceBytes, 12).ok());
  EXPECT_TRUE(Get(stranger_, pull, 0, kBytes - 1, 1).ok());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Get(stranger_, pull, 0, 0, kPieceBytes).ok());
  EXPECT_TRUE(Get(stranger_, pull, 0, 3, 5).ok());
  EXPECT_TRUE(Get(stranger_, pull, 0, kPieceBytes - 7, kPieceBytes).ok());
}

TEST_F(PullRequestsTest, APullThatHasEndedHasNoPieces) {
  const uint64_t pull = Begin(stranger_), second = Begin(stranger_);
  EXPECT_TRUE(End(stranger_, pull).ok());
  for (const uint64_t gone : {pull, uint64_t{0}, second + 1, ~uint64_t{0}}) {
    const absl::Status refused = Get(stranger_, gone, 0, 0, 1);
    EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("fetch again"));
    EXPECT_TRUE(End(stranger_, gone).ok());
  }
  EXPECT_TRUE(Get(stranger_, second, 0, 0, 1).ok());
}

TEST_F(PullRequestsTest, APullBelongsToItsSession) {
  const uint64_t pull = Begin(stranger_);
  EXPECT_EQ(Get(other_, pull, 0, 0, 1).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(End(other_, pull).ok());
  EXPECT_TRUE(Get(stranger_, pull, 0, 0, 1).ok());
  const uint64_t own = Begin(other_);
  EXPECT_TRUE(Get(other_, own, 0, 0, 1).ok());
  EXPECT_EQ(Get(stranger_, own, 0, 0, 1).code(), absl::StatusCode::kNotFound);
}

TEST_F(PullRequestsTest, ASessionWithTheMostPullsGetsWholeAnswers) {
  std::vector<uint64_t> pulls;
  for (size_t i = 0; i < DevicePulls::kPerSession; ++i) pulls.push_back(Begin(stranger_));
  EXPECT_THAT(pulls, ::testing::Each(::testing::Gt(0u)));
  EXPECT_EQ(Begin(stranger_), 0u);
  EXPECT_GT(Begin(other_), 0u);
  EXPECT_TRUE(End(stranger_, pulls[7]).ok());
  EXPECT_GT(Begin(stranger_), 0u);
}

// No piece can be sent while the device does nothing. Pieces of the stranger that have no pinned
// memory wait on threads of the executor.
TEST_F(PullRequestsTest, ASessionLeavesPinnedMemoryToOthers) {
  constexpr size_t kAsked = kPinnedPieces;
  const uint64_t pull = Begin(stranger_), own = Begin(other_);
  ASSERT_TRUE(device().Synchronize().ok());
  std::vector<Future<rpc::Reply>> pieces;
  {
    const testing::Stall stall(device());
    const size_t before = device().copies_added();
    for (size_t i = 0; i < kAsked; ++i) pieces.push_back(Ask(stranger_, pull, 0, i, kPieceBytes));
    while (device().copies_added() - before < kAsked) std::this_thread::yield();
    EXPECT_EQ(device().pinned_peak_bytes(), DevicePulls::kPinnedPerSession * kPieceBytes);
    // A session cannot begin anew by ending its pulls.
    EXPECT_TRUE(End(stranger_, pull).ok());
    pieces.push_back(Ask(stranger_, Begin(stranger_), 0, kAsked, kPieceBytes));
    while (device().copies_added() - before <= kAsked) std::this_thread::yield();
    EXPECT_EQ(device().pinned_peak_bytes(), DevicePulls::kPinnedPerSession * kPieceBytes);
    const Future<rpc::Reply> others = Ask(other_, own, 0, 0, kPieceBytes);
    while (device().copies_added() - before <= kAsked + 1) std::this_thread::yield();
    EXPECT_EQ(device().pinned_peak_bytes(), (DevicePulls::kPinnedPerSession + 1) * kPieceBytes);
    pieces.push_back(others);
  }
  for (size_t i = 0; i <= kAsked; ++i) ExpectPiece(Must(pieces[i].Wait()), i, kPieceBytes);
  ExpectPiece(Must(pieces.back().Wait()), 0, kPieceBytes);
  while (!device().pinned_memory().Allocate(kPinnedPieces * kPieceBytes).ok())
    std::this_thread::yield();
}

}  // namespace
}  // namespace psd
