// Where an owner needs gradients that were lent to it, and on which thread it waits for them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/functions/functions.h"
#include "core/autograd/node.h"
#include "core/autograd/sparse_leaf.h"
#include "core/autograd/variable.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/dist_autograd/lent_gradients_fixture.h"
#include "tests/core/dist_autograd/test_worker.h"

namespace psd::dist_autograd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A sum with what the context has on a device may wait for the device.
TEST_F(LentGradientsTest, APassThatAddsToAGradientOnADeviceEndsOnTheExecutor) {
  ShowAll();
  ASSERT_TRUE(Backward(3).ok());
  ASSERT_TRUE(CollectedThere());
  const int tasks = owner_.worker.executor.tasks;
  ASSERT_TRUE(BackwardFrom({Fetch("pull")}, {OnTheHost(4)}).ok());
  EXPECT_EQ(owner_.worker.executor.tasks, tasks + 1);
  EXPECT_EQ(Collected(), 7);
}

// Gradients of a leaf that come to the graph from two messages are added by the thread that takes
// the second one, which may read the network.
TEST_F(LentGradientsTest, ALentAndACopiedGradientMeetOnTheHost) {
  ShowAll();
  for (const bool lent_first : {true, false}) {
    const Variables both = {Fetch("weight"), Fetch("weight")};
    const Tensor lent = OnTheDevice(3), copied = OnTheHost(4);
    ASSERT_TRUE(BackwardFrom(both, {lent_first ? lent : copied, lent_first ? copied : lent}).ok());
    EXPECT_FALSE(CollectedThere());
  }
  EXPECT_EQ(Collected(), 14);
  RunUntilNothingIsLent();
}

// Lent gradients are not written, so their sum needs memory of its own.
TEST_F(LentGradientsTest, TheGradientsOfTwoUsesMeetWhereThereIsRoom) {
  owner_.worker.functions["weight twice and more"] = [this](TestWorker&, const ContextPtr&,
                                                            const Variables&) {
    return Variables{weight_, weight_, Mul(weight_, 2)};
  };
  ShowAll();
  for (const bool full : {false, true}) {
    const Variables all = trainer_.worker.Call(context_, "owner", "weight twice and more", {});
    const std::vector<Tensor> gradients = {OnTheDevice(3), OnTheDevice(4), OnTheDevice(5)};
    if (full) owner_.device->FailAllocation(1);
    const absl::Status back = BackwardFrom(all, gradients);
    ASSERT_TRUE(back.ok()) << back;
    EXPECT_EQ(CollectedThere(), !full);
    EXPECT_EQ(Collected(), 17);
    context_ = trainer_.worker.autograd->NewContext();
  }
  RunUntilNothingIsLent();
}

TEST_F(LentGradientsTest, AHookOfALeafOnTheHostReadsGradientsThere) {
  ShowAll();
  float seen = 0;
  ASSERT_TRUE(weight_
                  .AddGradientHook([&seen](const Tensor& gradient) -> absl::StatusOr<Tensor> {
                    if (gradient.OnHost()) seen = gradient.data<float>()[kElements - 1];
                    return gradient;
                  })
                  .ok());
  ASSERT_TRUE(BackwardFrom({Fetch("weight")}, {OnTheDevice(3)}).ok());
  EXPECT_EQ(seen, 3);
  EXPECT_EQ(Collected(), 3);
}

// A leaf on the owner's device that is used twice. Its hook keeps what it sees.
class HookOnADeviceTest : public LentGradientsTest {
 protected:
  HookOnADeviceTest() {
    EXPECT_TRUE(there_
                    .AddGradientHook([this](const Tensor& gradient) -> absl::StatusOr<Tensor> {
                      seen_.push_back(gradient);
                      return gradient;
                    })
                    .ok());
    owner_.worker.functions["hooked twice"] = [this](TestWorker&, const ContextPtr&,
                                                     const Variables&) {
      return Variables{there_, there_};
    };
  }

  // `full`: there is no room for the first tensor that the pass makes at the owner.
  absl::Status BackwardTwice(float first, float second, bool full = false) {
    context_ = trainer_.worker.autograd->NewContext();
    const Variables both = trainer_.worker.Call(context_, "owner", "hooked twice", {});
    if (full) owner_.device->FailAllocation(1);
    return BackwardFrom(both, {OnTheDevice(first), OnTheDevice(second)});
  }
  bool SeenThere() const { return seen_.back().device() == owner_.device.get(); }

  std::vector<Tensor> seen_;
  const Variable there_ =
      Variable::Leaf(*CopyTo(owner_.device.get(), *Tensor::Zeros({kElements}, DType::kF32)),
                     kWeight, /*version=*/1);
};

TEST_F(HookOnADeviceTest, SeesTheSameSumThereWhetherGradientsAreLentOrCopied) {
  std::vector<float> sums;
  for (const bool lends : {false, true}) {
    if (lends) ShowAll();
    ASSERT_TRUE(BackwardTwice(0.1f, 0.7f).ok());
    EXPECT_EQ(network_.Count(kGradient), lends ? 2 : 1);
    ASSERT_THAT(seen_, SizeIs(lends ? 2 : 1));
    EXPECT_TRUE(SeenThere());
    EXPECT_TRUE(CollectedThere());
    sums.push_back(Collected());
    EXPECT_EQ(seen_.back().ToHost()->data<float>()[kElements - 1], sums.back());
  }
  EXPECT_THAT(sums, ElementsAre(0.1f + 0.7f, 0.1f + 0.7f));
  RunUntilNothingIsLent();  // a sum has memory of its own
}

TEST_F(HookOnADeviceTest, KeepsTheLoanOfAGradientAsLongAsItKeepsTheTensor) {
  ShowAll();
  owner_.worker.functions["hooked"] = [this](TestWorker&, const ContextPtr&, const Variables&) {
    return Variables{there_};
  };
  ASSERT_TRUE(BackwardFrom({Fetch("hooked")}, {OnTheDevice(3)}).ok());
  trainer_.worker.autograd->Release(context_->id());
  network_.RunAll();
  EXPECT_EQ(loans(), 1);
  EXPECT_TRUE(SeenThere());
  EXPECT_EQ(seen_.back().ToHost()->data<float>()[kElements - 1], 3);
  seen_.clear();
  RunUntilNothingIsLent();
}

// The sum must be where the hook expects it, so it does not move to the host.
TEST_F(HookOnADeviceTest, FailsThePassIfThereIsNoRoomForTheSum) {
  ShowAll();
  const absl::Status back = BackwardTwice(3, 4, /*full=*/true);
  EXPECT_EQ(back.code(), absl::StatusCode::kResourceExhausted) << back;
  EXPECT_THAT(seen_, IsEmpty());
  EXPECT_EQ(Collected(), 0);
  RunUntilNothingIsLent();
  ASSERT_TRUE(BackwardTwice(3, 4).ok());
  EXPECT_TRUE(SeenThere());
  EXPECT_EQ(Collected(), 7);
}

// A sparse gradient has its values on the host, whether its node is all that the owner runs, or one
// of those that run, or comes behind an operator.
TEST_F(LentGradientsTest, TheGradientOfRowsIsReadOnTheHost) {
  ShowAll();
  constexpr int64_t kWidth = 4096, kRows = kElements / kWidth + 1;
  const LeafInfo table = {{2, 2'000'000}, Shape{kRows, kWidth}, DType::kF32, 1};
  const auto look_up = [&table] {
    const Tensor ids = *Tensor::Full({kRows}, DType::kI64, 7);
    return SparseLeaf(table, ids, *Tensor::Zeros({kRows, kWidth}, DType::kF32));
  };
  owner_.worker.functions["rows"] = [&](TestWorker&, const ContextPtr&, const Variables&) {
    return Variables{look_up()};
  };
  owner_.worker.functions["rows and twice as much"] = [&](TestWorker&, const ContextPtr&,
                                                          const Variables&) {
    const Variable rows = look_up();
    return Variables{rows, Mul(rows, 2)};
  };
  const Tensor gradient =
      *CopyTo(trainer_.device.get(), *Tensor::Full({kRows, kWidth}, DType::kF32, 3));
  const std::string both = "rows and twice as much";
  for (const auto& [function, result] :
       {std::pair<std::string, size_t>("rows", 0), {both, 0}, {both, 1}}) {
    const Variables rows = trainer_.worker.Call(context_, "owner", function, {});
    const absl::Status back = BackwardFrom({rows[result]}, {gradient});
    ASSERT_TRUE(back.ok()) << function << " " << result << ": " << back;
  }
  EXPECT_EQ(network_.Count(kGradient), 3);
  const auto collected =
      (*owner_.worker.autograd->Find(context_->id()))->Gradient(table.key)->sparse;
  ASSERT_THAT(collected, SizeIs(3));
  for (size_t pass = 0; pass < collected.size(); ++pass) {
    EXPECT_EQ(collected[pass].indices().data<int64_t>()[kRows - 1], 7);
    EXPECT_EQ(collected[pass].values().data<float>()[kRows * kWidth - 1], pass == 2 ? 6 : 3);
  }
  RunUntilNothingIsLent();
}

}  // namespace
}  // namespace psd::dist_autograd
