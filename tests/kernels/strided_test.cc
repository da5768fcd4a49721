#include "kernels/strided.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace psd::kernels {
namespace {

template <typename T>
std::vector<T> Gather(const std::vector<T>& from, size_t first, const std::vector<int64_t>& extents,
                      const std::vector<int64_t>& strides) {
  int64_t count = 1;
  for (int64_t extent : extents) count *= extent;
  std::vector<T> to(static_cast<size_t>(count));
  StridedCopy(reinterpret_cast<const std::byte*>(from.data() + first), extents.data(),
              strides.data(), static_cast<int>(extents.size()), sizeof(T),
              reinterpret_cast<std::byte*>(to.data()));
  return to;
}

// Copies the strided elements index by index.
template <typename T>
std::vector<T> Reference(const std::vector<T>& from, size_t first,
                         const std::vector<int64_t>& extents, const std::vector<int64_t>& strides,
                         size_t axis = 0) {
  if (axis == extents.size()) return {from[first]};
  std::vector<T> to;
  for (int64_t i = 0; i < extents[axis]; ++i) {
    const size_t at = first + static_cast<size_t>(i * strides[axis]);
    for (T value : Reference(from, at, extents, strides, axis + 1)) to.push_back(value);
  }
  return to;
}

template <typename T>
class StridedTest : public ::testing::Test {};
using Items = ::testing::Types<uint8_t, uint16_t, uint32_t, uint64_t>;
TYPED_TEST_SUITE(StridedTest, Items);

TYPED_TEST(StridedTest, GathersEveryLayout) {
  std::vector<TypeParam> from(5000);
  std::iota(from.begin(), from.end(), TypeParam{0});
  const struct {
    size_t first;
    std::vector<int64_t> extents;
    std::vector<int64_t> strides;
  } layouts[] = {
      {7, {}, {}},
      {0, {5}, {1}},
      {3, {5}, {3}},
      {20, {5}, {-3}},
      {9, {4}, {0}},
      {0, {40, 50}, {50, 1}},
      {0, {50, 40}, {1, 50}},
      {2, {33, 70}, {1, 64}},
      {0, {4, 5, 6}, {30, 6, 1}},
      {0, {6, 5, 4}, {1, 6, 30}},
      {1, {5, 1, 4}, {2, 99, 20}},
      {0, {2, 3, 4, 5}, {7, 500, 1, 60}},
      {0, {3, 4}, {0, 1}},
      {0, {3, 4, 2}, {8, 0, 1}},
      {100, {3, 4}, {-4, -1}},
      {0, {3, 0, 4}, {1, 1, 1}},
  };
  for (const auto& layout : layouts) {
    EXPECT_EQ(Gather(from, layout.first, layout.extents, layout.strides),
              Reference(from, layout.first, layout.extents, layout.strides))
        << "layout starting at " << layout.first << " with " << layout.extents.size() << " axes";
  }
}

}  // namespace
}  // namespace psd::kernels
