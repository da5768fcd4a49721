#include "core/services/collectives/device_offer.h"

#include <string>
#include <vector>

#include "core/base/device_collectives.h"
#include "core/services/collectives/collective_call.h"
#include "gtest/gtest.h"

namespace psd::services {
namespace {

DeviceOffer OfferOf(const std::string& gpu, const std::string& library = "NCCL 2.27") {
  return {DeviceOffer::kDevice, ChecksumOf(CollectiveCall()), library, gpu};
}

const std::vector<std::string> kWorkers = {"t0", "t1", "t2"};

TEST(DeviceOfferTest, AnOfferIsReadAsItWasWritten) {
  const DeviceOffer offer = OfferOf("GPU-5");
  const DeviceOffer read = DecodeOffer(EncodeOffer(offer));
  EXPECT_EQ(read.kind, DeviceOffer::kDevice);
  EXPECT_EQ(read.call, offer.call);
  EXPECT_EQ(read.library, "NCCL 2.27");
  EXPECT_EQ(read.identity, "GPU-5");
}

TEST(DeviceOfferTest, AllOffersHaveOneLength) {
  EXPECT_EQ(EncodeOffer({}).size(), kOfferBytes);
  EXPECT_EQ(EncodeOffer(OfferOf(std::string(1000, 'x'), std::string(1000, 'y'))).size(),
            kOfferBytes);
}

TEST(DeviceOfferTest, AnythingMayBeRead) {
  const DeviceOffer read = DecodeOffer(std::string(kOfferBytes, '\xff'));
  EXPECT_EQ(read.kind, DeviceOffer::kHost);  // a kind of a later build
  EXPECT_EQ(read.identity.size(), DeviceCollectives::kMostTextBytes);
  const std::string bytes = EncodeOffer(OfferOf("a"));
  EXPECT_EQ(DecodeOffer(bytes).kind, DeviceOffer::kDevice);
  EXPECT_EQ(DecodeOffer(bytes + "x").kind, DeviceOffer::kHost);
  EXPECT_EQ(DecodeOffer("").kind, DeviceOffer::kHost);
}

TEST(DeviceOfferTest, CallsThatDifferHaveDifferentChecksums) {
  CollectiveCall other;
  other.label = "other";
  EXPECT_EQ(ChecksumOf(CollectiveCall()), ChecksumOf(CollectiveCall()));
  EXPECT_NE(ChecksumOf(CollectiveCall()), ChecksumOf(other));
}

TEST(DeviceOfferTest, TheRankThatPreventsTheCallIsNamed) {
  const DeviceOffer a = OfferOf("a"), b = OfferOf("b"), c = OfferOf("c");
  EXPECT_EQ(ObstacleTo({a, b, c}, kWorkers), "");
  EXPECT_EQ(ObstacleTo({a, DeviceOffer(), c}, kWorkers), "t1 has its tensor elsewhere");
  DeviceOffer alone = b;
  alone.kind = DeviceOffer::kNoLibrary;
  EXPECT_EQ(ObstacleTo({a, alone, c}, kWorkers), "t1 has no library for its GPU");
  EXPECT_EQ(ObstacleTo({a, b, OfferOf("c", "NCCL 2.28")}, kWorkers),
            "t0 has NCCL 2.27, and t2 has NCCL 2.28");
  EXPECT_EQ(ObstacleTo({a, b, b}, kWorkers), "t1 and t2 share a GPU");
}

}  // namespace
}  // namespace psd::services
