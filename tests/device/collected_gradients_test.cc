// Where the gradients are that a step finds in a context: it waits for devices that have some.

#include "core/services/optimizers/collected_gradients.h"

#include <memory>

#include "core/base/ids.h"
#include "core/dist_autograd/context.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/store/store.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/owner_steps.h"

namespace psd::services {
namespace {

class CollectedGradientsTest : public OwnerStepsTest {
 protected:
  // Whether a step of `optimizer` with `gradient` for `parameter` finds one on a device.
  static bool OnDevice(const optim::OwnerOptimizer& optimizer, const store::EntryPtr& parameter,
                       const Tensor& gradient) {
    IdSource ids(1);
    dist_autograd::ContextState context({1, 1}, ids);
    EXPECT_TRUE(
        context.Accumulate({parameter->id, gradient.shape(), gradient.dtype(), 1}, gradient).ok());
    return PickGradients(context.Gradients(), optimizer.table()).on_device;
  }
};

INSTANTIATE_TEST_SUITE_P(Seeds, CollectedGradientsTest, ::testing::Values(0));

TEST_P(CollectedGradientsTest, AGradientOfAParameterOnTheHostMayBeOnADevice) {
  const store::EntryPtr stepped = NewParameter("w", "cpu", Full(1));
  const store::EntryPtr other = NewParameter("b", "cpu", Full(1));
  const auto optimizer = NewOptimizer("main", {"sgd", {{"lr", 0.5}}}, {stepped});
  const Tensor here = Full(2), there = Must(CopyTo(&device(), here));
  EXPECT_FALSE(OnDevice(*optimizer, stepped, here));
  EXPECT_TRUE(OnDevice(*optimizer, stepped, there));
  EXPECT_FALSE(OnDevice(*optimizer, other, there)) << "the step does not use it";
}

}  // namespace
}  // namespace psd::services
