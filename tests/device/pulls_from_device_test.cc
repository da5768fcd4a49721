// Large parameters on a device come to trainers in pieces: their elements, versions and gradients.
// The tests run with several seeds, which decide in which order an emulated device works.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/psd.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/device_under_test.h"
#include "tests/device/pulls_in_pieces.h"

namespace psd {
namespace {

class PullsFromDeviceTest : public testing::OnDevice<PullsInPieces<Device>> {
 protected:
  PullsFromDeviceTest() : OnDevice(testing::OpenDeviceUnderTest(Options())) {}

 private:
  static testing::DeviceUnderTestOptions Options() {
    testing::DeviceUnderTestOptions options;
    options.budget_bytes = kBudgetBytes;
    options.pinned_bytes = kPinnedBytes;
    options.seed = GetParam();
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Orders, PullsFromDeviceTest, ::testing::Values(0, 1));

TEST_P(PullsFromDeviceTest, SmallLargeAndHostParametersComeTogether) {
  const RRef large = Make("large", testing::NameOfDevice(), 1),
             second = Make("second", testing::NameOfDevice(), 2), on_cpu = Make("cpu", "cpu", 3);
  CreateOptions there;
  there.device = testing::NameOfDevice();
  const RRef small = Must(trainer_->GetOrCreate("owner", "small", Full({4}, 4), there));
  const Values values = Must(trainer_->ToHere({small, large, on_cpu, second}));
  EXPECT_TRUE(AllAre(4, ElementsOf(values[0])));
  EXPECT_TRUE(AllAre(1, ElementsOf(values[1])));
  EXPECT_TRUE(AllAre(3, ElementsOf(values[2])));
  EXPECT_TRUE(AllAre(2, ElementsOf(values[3])));
  const auto later = trainer_->ToHereAsync({large});
  EXPECT_TRUE(AllAre(1, ElementsOf(Must(later.Wait())[0])));
}

TEST_P(PullsFromDeviceTest, GradientsOfWhatCameInPiecesAreStepped) {
  const RRef w = Make("w", testing::NameOfDevice());
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Sgd{0.5}, {w}));
  Context context = Must(trainer_->NewContext());
  const Variable here = Must(trainer_->ToHere({w}, context))[0];
  ASSERT_TRUE(context.Backward({Sum(here)}).ok());
  ASSERT_TRUE(optimizer->Step(context).ok());
  EXPECT_TRUE(AllAre(1.5f, Read(*trainer_, w)));
}

// A version that is pulled does not change, however many steps are applied meanwhile.
TEST_P(PullsFromDeviceTest, AVersionIsPulledAsAWhole) {
  const RRef w = Make("w", testing::NameOfDevice());
  std::vector<Future<Values>> pulls;
  for (int i = 1; i <= 4; ++i) {
    pulls.push_back(trainer_->ToHereAsync({w}));
    Must(trainer_->Assign(w, Must(Tensor::Full({kElements}, DType::kF32, 10.0 * i))));
  }
  for (const Future<Values>& pull : pulls) {
    const std::vector<float> elements = ElementsOf(Must(pull.Wait())[0]);
    EXPECT_TRUE(AllAre(elements[0], elements));
  }
  pulls.clear();
  AwaitNothingHeld(w);
}

// With less pinned memory than a piece needs, pieces go through other memory.
TEST_P(PullsFromDeviceTest, APullNeedsNoPinnedMemory) {
  const RRef w = Make("w", testing::NameOfDevice());
  for (const size_t room : {size_t{0}, kPieceBytes, kPieceBytes / 2}) {
    const auto taken = TakePinned(kPinnedBytes - room);
    EXPECT_TRUE(AllAre(2, Read(*trainer_, w))) << room;
  }
  AwaitNothingHeld(w);
}

}  // namespace
}  // namespace psd
