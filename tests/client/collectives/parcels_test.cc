// Many tensors in few messages: how they are packed, and broadcasts that one rank cannot go on
// with.

#include "client/collectives/parcels.h"

#include <memory>
#include <string>
#include <vector>

#include "client/collectives/group.h"
#include "client/psd.h"
#include "core/base/future.h"
#include "core/base/status.h"
#include "core/services/collectives/group_ledger.h"
#include "core/tensor/copy_to.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/test_world.h"
#include "tests/device/test_device.h"

namespace psd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor Filled(const Shape& shape, double value) {
  return Must(Tensor::Full(shape, DType::kF32, value));
}

TEST(ParcelsTest, SmallTensorsTravelTogetherAndLargeOnesAlone) {
  const auto lone = static_cast<int64_t>(kLoneBytes / 4);
  const std::vector<Tensor> tensors = {Filled({3}, 1), Filled({lone}, 2), Filled({0}, 3),
                                       Filled({}, 4), Filled({2, 20}, 5)};
  const std::vector<TensorForm> forms = FormsOf(tensors);
  const std::vector<Parcel> parcels = PlanParcels(forms);
  ASSERT_EQ(parcels.size(), 2u);
  EXPECT_THAT(parcels[0].members, ElementsAre(1));
  EXPECT_EQ(parcels[0].bytes, kLoneBytes);
  EXPECT_THAT(parcels[1].members, ElementsAre(0, 3, 4));
  EXPECT_EQ(parcels[1].bytes, 64u + 64 + 192) << "each begins at a multiple of 64 bytes";
  std::vector<Tensor> unpacked = Must(WithoutElements(forms));
  for (const Parcel& parcel : parcels) {
    const absl::Status done = Unpack(parcel, forms, Must(Pack(parcel, tensors)), unpacked);
    EXPECT_TRUE(done.ok()) << done;
  }
  for (size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(SameBits(unpacked[i], tensors[i])) << i;
  const absl::Status other = Unpack(parcels[0], forms, Filled({3}, 1), unpacked);
  EXPECT_THAT(std::string(other.message()), HasSubstr("f32[3], expected f32["));
}

TEST(ParcelsTest, NoParcelIsLargerThanTheLimit) {
  const std::vector<TensorForm> forms(100, {DType::kF32, {static_cast<int64_t>(kLoneBytes / 8)}});
  size_t members = 0;
  for (const Parcel& parcel : PlanParcels(forms)) {
    EXPECT_LE(parcel.bytes, kMostParcelBytes);
    EXPECT_GT(parcel.members.size(), 1u);
    members += parcel.members.size();
  }
  EXPECT_EQ(members, forms.size());
}

TEST(ParcelsTest, EveryRankGetsTheTensorsOfEveryRoot) {
  // More bytes than may wait at once.
  constexpr int kRanks = 3;
  GroupWorld world(kRanks);
  const auto groups = world.JoinAll("ranks");
  const std::vector<Shape> shapes = {{5}, {0}, {4'000'000}, {3, 3}, {3'000'000}};
  InParallel(kRanks, [&](int rank) {
    std::vector<ParcelSource> sources;
    for (int root = 0; root < kRanks; ++root) {
      ParcelSource& source = sources.emplace_back();
      source.root = root;
      std::vector<Tensor> tensors;
      for (const Shape& shape : shapes) tensors.push_back(Filled(shape, root + 1));
      source.forms = FormsOf(tensors);
      if (root == rank) source.tensors = tensors;
    }
    const auto all = Must(BroadcastParcels(*groups[rank], sources, {}));
    for (int root = 0; root < kRanks; ++root)
      for (size_t i = 0; i < shapes.size(); ++i)
        EXPECT_TRUE(SameBits(all[root][i], Filled(shapes[i], root + 1)));
  });
}

TEST(ParcelsTest, ZERO_20_TensorsOfEachDeviceTravelInABufferOfItsOwn) {
  const auto devices = testing::NewTestDevices(2, /*seed=*/0);
  const std::vector<Device*> places = {devices[0].get(), nullptr,          devices[1].get(),
                                       devices[0].get(), devices[1].get(), devices[1].get(),
                                       nullptr};
  const std::vector<Shape> shapes = {{3}, {4}, {5}, {6}, {static_cast<int64_t>(kLoneBytes / 4)},
                                     {0}, {2}};
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < shapes.size(); ++i)
    tensors.push_back(Must(CopyTo(places[i], Filled(shapes[i], static_cast<double>(i)))));
  const std::vector<TensorForm> forms = FormsOf(tensors);
  const std::vector<Parcel> parcels = PlanParcels(forms, places);
  ASSERT_EQ(parcels.size(), 4u);
  EXPECT_THAT(parcels[0].members, ElementsAre(4)) << "it is large";
  EXPECT_THAT(parcels[1].members, ElementsAre(0, 3));
  EXPECT_THAT(parcels[2].members, ElementsAre(1, 6));
  EXPECT_THAT(parcels[3].members, ElementsAre(2));
  std::vector<Tensor> unpacked = Must(WithoutElements(forms, places));
  for (const Parcel& parcel : parcels) {
    const Tensor message = Must(Pack(parcel, tensors));
    EXPECT_EQ(message.device(), parcel.device);
    const absl::Status done = Unpack(parcel, forms, Must(message.ToHost()), unpacked);
    EXPECT_TRUE(done.ok()) << done;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(unpacked[i].device(), places[i]) << i;
    EXPECT_TRUE(SameBits(unpacked[i], tensors[i])) << i;
  }
}

TEST(ParcelsTest, ACallThatIsRefusedEndsTheGroupWithItsReason) {
  GroupWorld world(2);
  const auto groups = world.JoinAll("ranks");
  // Rank 0 has room for one more call, and rank 1 makes none.
  std::vector<Future<Unit>> barriers;
  for (uint64_t i = 0; i + 1 < services::GroupLedger::kMaxEntered; ++i)
    barriers.push_back(groups[0]->BarrierAsync());
  ParcelSource source;
  source.tensors.assign(3, Filled({static_cast<int64_t>(kLoneBytes)}, 1));
  source.forms = FormsOf(source.tensors);
  const absl::Status refused = BroadcastParcels(*groups[0], {source}, {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("calls are not complete"));
  absl::Status told;
  while (told.ok()) told = groups[1]->Barrier();
  EXPECT_TRUE(absl::IsResourceExhausted(told)) << told;
  EXPECT_EQ(GetDetail(told)->worker, "t0");
}

}  // namespace
}  // namespace psd
