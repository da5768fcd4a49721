#include "client/ddp/buffer_groups.h"

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/device.h"
#include "core/device/emulated/emulated_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/device/test_device.h"

namespace psd {
namespace {

using ::testing::ElementsAre;

std::vector<ReplicatedParameter> OfSizes(const std::vector<int64_t>& sizes) {
  std::vector<ReplicatedParameter> parameters;
  for (const int64_t size : sizes) {
    parameters.emplace_back();
    parameters.back().shape = {size};
  }
  return parameters;
}

// The positions of each group, and checks the groups' sizes.
std::vector<std::vector<size_t>> Positions(const std::vector<ReplicatedParameter>& parameters,
                                           int64_t buffer_elements) {
  std::vector<std::vector<size_t>> positions;
  for (const BufferGroup& group : GroupForBuffers(parameters, buffer_elements)) {
    int64_t elements = 0;
    for (const size_t i : group.parameters) {
      elements += parameters[i].shape.NumElements();
      EXPECT_EQ(parameters[i].dtype, group.dtype);
      EXPECT_EQ(parameters[i].device, group.device);
    }
    EXPECT_EQ(group.elements, elements) << "only the used part of a buffer counts";
    positions.push_back(group.parameters);
  }
  return positions;
}

using Groups = std::vector<std::vector<size_t>>;

TEST(BufferGroupsTest, DDP_03_AnExactFitStaysTogetherAndAnOverflowFlushesFirst) {
  EXPECT_EQ(Positions(OfSizes({4, 6, 1, 9}), 10), (Groups{{0, 1}, {2, 3}}));
  EXPECT_EQ(Positions(OfSizes({4, 6, 1, 10}), 10), (Groups{{0, 1}, {2}, {3}}));
  EXPECT_EQ(Positions(OfSizes({4, 5, 2, 3}), 10), (Groups{{0, 1}, {2, 3}}));
}

TEST(BufferGroupsTest, DDP_04_AParameterLargerThanTheBufferGoesAloneAndAhead) {
  EXPECT_EQ(Positions(OfSizes({4, 3, 11, 2, 30, 5}), 10), (Groups{{2}, {4}, {0, 1, 3}, {5}}));
}

TEST(BufferGroupsTest, DDP_02_TheBufferIsNoLargerThanAllParametersFrozenOnesIncluded) {
  EXPECT_EQ(Positions(OfSizes({4, 6}), int64_t{1} << 40), (Groups{{0, 1}}));
  auto parameters = OfSizes({3, 7, 2});
  parameters[1].requires_grad = false;
  parameters[2].dtype = DType::kF64;
  EXPECT_EQ(BufferSize(parameters, nullptr, DType::kF32, 100), 10);
  EXPECT_EQ(BufferSize(parameters, nullptr, DType::kF32, 9), 9);
  EXPECT_EQ(BufferSize(parameters, nullptr, DType::kF64, 100), 2);
  EXPECT_EQ(Positions(parameters, 100), (Groups{{0}, {2}})) << "the frozen one is in no group";
}

TEST(BufferGroupsTest, DDP_08_DDP_28_FrozenParametersAndExpertsTakeNoPart) {
  auto parameters = OfSizes({1, 2, 3, 4});
  parameters[0].requires_grad = false;
  parameters[2].expert = true;
  EXPECT_EQ(Positions(parameters, 100), (Groups{{1, 3}}));
  for (auto& parameter : parameters) parameter.requires_grad = false;
  EXPECT_EQ(Positions(parameters, 100), Groups{});
}

TEST(BufferGroupsTest, DDP_05_ASingleParameterIsAGroupOfItsOwnSize) {
  EXPECT_EQ(Positions(OfSizes({7}), 100), (Groups{{0}}));
  EXPECT_EQ(Positions({}, 100), Groups{});
}

TEST(BufferGroupsTest, DDP_19_EachDTypeHasABufferOfItsOwn) {
  auto parameters = OfSizes({4, 4, 4, 4, 9});
  parameters[1].dtype = parameters[4].dtype = DType::kF64;
  parameters[3].dtype = DType::kF16;
  EXPECT_EQ(Positions(parameters, 8), (Groups{{0, 2}, {4}, {1}, {3}}));
}

TEST(BufferGroupsTest, DDP_20_EachDeviceHasABufferOfItsOwnForEachDType) {
  const auto devices = testing::NewTestDevices(2, /*seed=*/0);
  auto parameters = OfSizes({4, 4, 4, 4, 9, 2});
  parameters[1].device = parameters[3].device = devices[1].get();
  parameters[4].device = devices[0].get();
  parameters[5].device = devices[1].get();
  parameters[5].dtype = DType::kF64;
  EXPECT_EQ(Positions(parameters, 8), (Groups{{0, 2}, {1, 3}, {4}, {5}}));
  EXPECT_EQ(BufferSize(parameters, nullptr, DType::kF32, 100), 8);
  EXPECT_EQ(BufferSize(parameters, devices[0].get(), DType::kF32, 100), 9);
  EXPECT_EQ(BufferSize(parameters, devices[1].get(), DType::kF64, 100), 2);
  EXPECT_THAT(DeviceNumbers(parameters), ElementsAre(0, 1, 0, 1, 2, 1))
      << "the same on a replica whose devices have other names";
}

// The ranks reduce the same groups in the same order, wherever each has its experts.
TEST(BufferGroupsTest, DDP_20_DDP_28_AnExpertMayBeOnAnyDevice) {
  const auto devices = testing::NewTestDevices(2, /*seed=*/0);
  for (const int64_t room : {1, 4, 5, 8, 9, 100}) {
    std::vector<Groups> groups;
    for (Device* device : {static_cast<Device*>(nullptr), static_cast<Device*>(devices[0].get()),
                           static_cast<Device*>(devices[1].get())}) {
      auto parameters = OfSizes({5, 4, 4, 4, 4});
      parameters[0].expert = true;
      parameters[0].device = device;
      parameters[2].device = parameters[4].device = devices[0].get();
      EXPECT_THAT(DeviceNumbers(parameters), ElementsAre(0, 1, 0, 1));
      groups.push_back(Positions(parameters, room));
    }
    EXPECT_THAT(groups, ::testing::Each(groups[0])) << room;
    EXPECT_EQ(groups[0][0][0], 1u) << room;
  }
}

TEST(BufferGroupsTest, ParametersWithoutElementsAreKept) {
  EXPECT_EQ(Positions(OfSizes({0, 5, 0}), 5), (Groups{{0, 1, 2}}));
  EXPECT_EQ(Positions(OfSizes({0}), 5), (Groups{{0}}));
}

}  // namespace
}  // namespace psd
