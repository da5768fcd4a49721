// Optimizers that are created while other changes happen to the values and names that they need.

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/runtime/runtime.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/services/values/value_service.h"
#include "core/store/store.h"
#include "gtest/gtest.h"
#include "tests/client/function_world.h"
#include "tests/client/test_world.h"
#include "tests/core/store/changing_for_tests.h"

namespace psd {
namespace {

class OptimizerCreation : public FunctionWorld {};

TEST_F(OptimizerCreation, RREF_23_AnOptimizerOverWhatIsBeingMadeWaitsForIt) {
  services::OptimizerService& service = RuntimeOf(*trainer_).optimizer_service();
  for (const std::string owner : {"trainer0", "owner0"}) {
    const RRef slow = Must(trainer_->Remote(owner, Named("park"), {}));
    const Future<RRef> created = service.Create(owner, "", {{{"sgd", {}}, {slow}}}, {}, {});
    Promise<Values> creation = parking_.Take();
    EXPECT_FALSE(created.IsReady()) << owner << ": " << created.Wait().status();
    creation.Set(Values{Variable(Tensor::Of<float>({2}, {5, 6}), true)});
    EXPECT_TRUE(created.Wait().ok()) << owner << ": " << created.Wait().status();
  }
}

TEST_F(OptimizerCreation, OneOverAValueThatCannotBeMadeFailsWithItsError) {
  const RRef failed = Must(trainer_->Remote("owner0", Named("fail"), {}));
  const auto created = DistributedOptimizer::Create(*trainer_, "main", Sgd{1}, {failed});
  EXPECT_EQ(created.status().code(), absl::StatusCode::kOutOfRange) << created.status();
}

// The trainer waits for another trainer's creation of the name. The one that is first told of its
// end drops the name.
TEST_F(OptimizerCreation, OneThatIsDroppedMeanwhileIsMadeAgain) {
  worker::Runtime& owner = owner0_.runtime();
  const RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({2}, {1, 1}));
  std::promise<void> begun, may_end;
  std::thread other([&] {
    owner.store().GetOrCreate(store::ChangingForTests::Make(), "main", {},
                              [&]() -> absl::StatusOr<store::Value> {
                                begun.set_value();
                                may_end.get_future().wait();
                                return store::Value(int64_t{1});
                              });
  });
  begun.get_future().wait();
  owner.store()
      .GetOrCreate(store::ChangingForTests::Make(), "main", {},
                   [] { return absl::StatusOr<store::Value>(store::Value()); })
      .OnReady([&](const absl::StatusOr<store::EntryPtr>&) {
        EXPECT_TRUE(owner.values().DropHere("main").ok());
      });
  auto created = std::async(std::launch::async, [&] {
    return DistributedOptimizer::Create(*trainer_, "main", Sgd{1}, {w});
  });
  absl::SleepFor(absl::Milliseconds(100));  // by then the trainer waits for the creation
  may_end.set_value();
  const auto optimizer = created.get();
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  other.join();
}

}  // namespace
}  // namespace psd
