#include "core/base/collect.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

std::vector<Future<int>> FuturesOf(const std::vector<Promise<int>>& promises) {
  std::vector<Future<int>> futures;
  for (const Promise<int>& promise : promises) futures.push_back(promise.future());
  return futures;
}

TEST(CollectAllTest, RPC_29_RPC_30_ValuesComeInTheOrderOfTheFutures) {
  std::vector<Promise<int>> promises(3);
  Future<std::vector<int>> all = CollectAll(FuturesOf(promises));
  promises[2].Set(2);
  promises[0].Set(0);
  EXPECT_FALSE(all.IsReady());
  promises[1].Set(1);
  EXPECT_EQ(*all.Wait(), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(*WaitAll(FuturesOf(promises)), (std::vector<int>{0, 1, 2}));
}

TEST(CollectAllTest, RPC_29_RPC_30_TheFirstErrorEndsItBeforeTheSlowestIsThere) {
  std::vector<Promise<int>> promises(3);
  Future<std::vector<int>> all = CollectAll(FuturesOf(promises));
  promises[0].Set(0);
  promises[1].Set(absl::DataLossError("gone"));
  ASSERT_TRUE(all.IsReady());
  EXPECT_EQ(all.Wait().status(), absl::DataLossError("gone"));
  EXPECT_EQ(WaitAll(FuturesOf(promises)).status(), absl::DataLossError("gone"));
  promises[2].Set(absl::AbortedError("later"));
  EXPECT_EQ(all.Wait().status(), absl::DataLossError("gone"));
}

TEST(CollectAllTest, NothingToWaitForIsReady) {
  EXPECT_TRUE(CollectAll(std::vector<Future<int>>{}).Wait()->empty());
}

TEST(SettleTest, EveryResultComesInTheOrderOfTheFutures) {
  std::vector<Promise<int>> promises(3);
  Future<std::vector<absl::StatusOr<int>>> all = Settle(FuturesOf(promises));
  promises[2].Set(absl::DataLossError("gone"));
  promises[0].Set(0);
  EXPECT_FALSE(all.IsReady()) << "an error must not end it before the slowest is there";
  promises[1].Set(1);
  ASSERT_TRUE(all.IsReady());
  EXPECT_EQ(*all.Wait(), (std::vector<absl::StatusOr<int>>{0, 1, absl::DataLossError("gone")}));
  EXPECT_TRUE(Settle(std::vector<Future<int>>{}).Wait()->empty());
}

}  // namespace
}  // namespace psd
