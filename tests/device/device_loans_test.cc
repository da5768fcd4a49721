// A trainer reads the memory of an owner on the same device in place. Both are in one process, with
// an emulated device each.

#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "core/base/future.h"
#include "core/device_loans/device_loans.h"
#include "core/device_loans/lender.h"
#include "core/rpc/declared_method.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/worker.pb.h"
#include "tests/client/test_world.h"
#include "tests/device/lending_world.h"
#include "tests/device/stall.h"

namespace psd {
namespace {

using testing::AllAre;
using testing::ElementsThere;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kBytes;
using testing::kElements;
using testing::Sharing;
using testing::World;

class DeviceLoansTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  World world_{Sharing(), true, true, GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceLoansTest, ::testing::Values(0, 1));

TEST_P(DeviceLoansTest, APullCopiesNothing) {
  const RRef w = world_.Make("w");
  ASSERT_TRUE(world_.owners_device().Synchronize().ok());
  const size_t copies = world_.owners_device().copies_added();
  const size_t copies_here = world_.trainers_device().copies_added();
  const size_t used = world_.trainers_device().used_bytes();
  const Tensor pulled = world_.Pull(w);
  EXPECT_EQ(world_.owners_device().copies_added(), copies);
  EXPECT_EQ(world_.trainers_device().copies_added(), copies_here);
  EXPECT_EQ(world_.trainers_device().used_bytes(), used);
  EXPECT_EQ(pulled.device(), &world_.trainers_device());
  EXPECT_TRUE(AllAre(2, ElementsThere(pulled)));
  EXPECT_EQ(world_.BytesLent(), kBytes);
  EXPECT_EQ(world_.HowRead(),
            absl::StrCat("in place; its process has borrowed ", kBytes, " bytes in 1 blocks"));
}

TEST_P(DeviceLoansTest, LoansEndWhenTheLastTensorIsDropped) {
  const RRef w = world_.Make("w"), b = world_.Make("b");
  {
    const Tensor first = world_.Pull(w);
    {
      const Tensor second = world_.Pull(b);
      EXPECT_EQ(world_.BytesLent(), 2 * kBytes);
    }
    while (world_.BytesLent() > kBytes) std::this_thread::yield();
    EXPECT_TRUE(AllAre(2, ElementsThere(first)));
  }
  world_.AwaitNothingLent();
  world_.Assign(w, 3);
  EXPECT_EQ(world_.At(w).stats().old_pinned, 0);
}

TEST_P(DeviceLoansTest, LaterVersionsDoNotChangeWhatWasPulled) {
  const RRef w = world_.Make("w");
  std::vector<Tensor> pulled = {world_.Pull(w)};
  for (int i = 1; i <= 5; ++i) {
    world_.Assign(w, 10.0 * i);
    pulled.push_back(world_.Pull(w));
  }
  EXPECT_TRUE(AllAre(2, ElementsThere(pulled[0])));
  for (size_t i = 1; i < pulled.size(); ++i)
    EXPECT_TRUE(AllAre(10.0f * static_cast<float>(i), ElementsThere(pulled[i]))) << i;
  pulled.clear();
  world_.AwaitNothingLent();
}

// The whole way: forward and backward on what was borrowed, then a step of the owner.
TEST_P(DeviceLoansTest, WhatIsReadInPlaceIsTrained) {
  const RRef w = world_.Make("w");
  auto optimizer = Must(DistributedOptimizer::Create(*world_.trainer(), Sgd{0.5}, {w}));
  for (int step = 1; step <= 3; ++step) {
    world_.AwaitNothingLent();  // what the step before has borrowed
    Context context = Must(world_.trainer()->NewContext());
    CallOptions options = world_.there();
    options.context = &context;
    const Variable here = *Must(world_.trainer()->ToHere({w}, options))[0].As<Variable>();
    EXPECT_EQ(here.tensor().device(), &world_.trainers_device());
    EXPECT_EQ(world_.BytesLent(), kBytes);
    const absl::Status back = context.Backward({Sum(here)});
    ASSERT_TRUE(back.ok()) << back;
    ASSERT_TRUE(optimizer->Step(context).ok());
    EXPECT_TRUE(AllAre(2 - 0.5f * static_cast<float>(step), ElementsThere(world_.Pull(w))));
  }
}

// The version is published when its step has been added, and lent when the step is done.
TEST_P(DeviceLoansTest, AVersionIsLentWhenTheWorkThatWritesItIsDone) {
  const RRef w = world_.Make("w");
  auto optimizer = Must(DistributedOptimizer::Create(*world_.trainer(), Sgd{0.5}, {w}));
  Context context = Must(world_.trainer()->NewContext());
  const Variable here = Must(world_.trainer()->ToHere({w}, context))[0];
  ASSERT_TRUE(context.Backward({Sum(here)}).ok());
  ASSERT_TRUE(world_.owners_device().Synchronize().ok());
  std::thread step;
  Future<Values> pull;
  {
    const testing::Stall stall(world_.owners_device());
    step = std::thread([&] {
      const absl::Status stepped = optimizer->Step(context);
      EXPECT_TRUE(stepped.ok()) << stepped;
    });
    while (world_.At(w).version() == 1) std::this_thread::yield();
    pull = world_.trainer()->ToHereAsync({w}, world_.there());
    while (world_.BytesLent() == 0 && !pull.IsReady()) std::this_thread::yield();
    EXPECT_FALSE(pull.IsReady());
  }
  const Values values = Must(pull.Wait());
  step.join();
  EXPECT_TRUE(AllAre(1.5f, ElementsThere(values[0].As<Variable>()->tensor())));
}

TEST_P(DeviceLoansTest, PullsAndChangesAtTheSameTimeGiveWholeVersions) {
  const RRef w = world_.Make("w");
  std::vector<Future<Values>> pulls;
  for (int i = 1; i <= 6; ++i) {
    pulls.push_back(world_.trainer()->ToHereAsync({w}, world_.there()));
    world_.Assign(w, 10.0 * i);
  }
  std::vector<Tensor> tensors;
  for (const Future<Values>& pull : pulls)
    tensors.push_back(Must(pull.Wait())[0].As<Variable>()->tensor());
  world_.Assign(w, 99);
  for (const Tensor& tensor : tensors) {
    const std::vector<float> elements = ElementsThere(tensor);
    EXPECT_TRUE(AllAre(elements[0], elements));
    EXPECT_NE(elements[0], 99);
  }
  tensors.clear();
  pulls.clear();
  world_.AwaitNothingLent();
}

// An answer that nobody takes leaves nothing behind.
TEST_P(DeviceLoansTest, WhoGivesUpAPullBorrowsNothing) {
  const RRef w = world_.Make("w");
  {
    const testing::Stall stall(world_.owners_device());
    CallOptions soon = world_.there();
    Future<Values> pull;
    // A busy machine may lend nothing within the first timeouts.
    for (absl::Duration timeout = absl::Seconds(2);; timeout *= 3) {
      soon.timeout = timeout;
      pull = world_.trainer()->ToHereAsync({w}, soon);
      while (world_.BytesLent() == 0 && !pull.IsReady()) std::this_thread::yield();
      if (!pull.IsReady()) break;
      ASSERT_LT(timeout, absl::Minutes(1)) << "nothing was lent in time";
    }
    const absl::Status late = pull.Wait().status();
    EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  }
  world_.AwaitNothingLent();
  EXPECT_TRUE(AllAre(2, ElementsThere(world_.Pull(w))));
}

TEST_P(DeviceLoansTest, ADeviceThatIsLostEndsThePullAndItsLoans) {
  const RRef w = world_.Make("w");
  ASSERT_TRUE(world_.owners_device().Synchronize().ok());
  Future<Values> pull;
  {
    const testing::Stall stall(world_.owners_device());
    pull = world_.trainer()->ToHereAsync({w}, world_.there());
    while (world_.BytesLent() == 0 && !pull.IsReady()) std::this_thread::yield();
    EXPECT_FALSE(pull.IsReady());
    world_.owners_device().Lose("a test");
  }
  const absl::Status lost = pull.Wait().status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("a test"));
  world_.AwaitNothingLent();
}

TEST_P(DeviceLoansTest, SmallParametersAndThoseForTheHostAreCopied) {
  const RRef w = world_.Make("w");
  CreateOptions options;
  options.device = "emu:0";
  const RRef small = Must(world_.trainer()->GetOrCreate("owner", "small", Full({4}, 4), options));
  const auto both = Must(world_.trainer()->Pull({small, w}, world_.there()));
  EXPECT_TRUE(AllAre(4, ElementsThere(both[0].elements)));
  EXPECT_TRUE(AllAre(2, ElementsThere(both[1].elements)));
  EXPECT_EQ(world_.BytesLent(), kBytes);
  const Tensor on_host = Must(world_.trainer()->Pull({w}))[0].elements;
  EXPECT_TRUE(AllAre(2, Elements(on_host)));
  EXPECT_EQ(world_.BytesLent(), kBytes);
  EXPECT_THAT(world_.HowRead(), HasSubstr("copied: it has not asked"));
}

// A trainer that has gone may have left tensors to its process, so what it has borrowed stays.
TEST_P(DeviceLoansTest, TheEndOfASessionDoesNotEndALoan) {
  const RRef w = world_.Make("w");
  auto other = StartTrainer("other", {world_.host().owner().address()});
  const RRef same = Must(other->Lookup("owner", "w"));
  const Tensor pulled = world_.Pull(w);
  world_.trainer().reset();
  // Until the owner knows.
  while (absl::StrContains(world_.HowRead(), "in place")) std::this_thread::yield();
  for (int i = 0; i < 4; ++i)
    Must(other->Assign(same, Must(Tensor::Full({kElements}, DType::kF32, 7))));
  EXPECT_EQ(world_.BytesLent(), kBytes);
  EXPECT_TRUE(AllAre(2, ElementsThere(pulled)));
}

TEST_P(DeviceLoansTest, MoreThanAFractionOfTheBudgetIsNotLent) {
  constexpr size_t kBudget = size_t{64} << 20;
  constexpr size_t kMost = kBudget / device_loans::Lender::kLentFraction / kBytes;
  std::vector<Tensor> pulled;
  for (size_t i = 0; i <= kMost; ++i) {
    const RRef w = world_.Make(absl::StrCat("w", i), static_cast<double>(i));
    pulled.push_back(world_.Pull(w));
    EXPECT_TRUE(AllAre(static_cast<float>(i), ElementsThere(pulled.back()))) << i;
  }
  EXPECT_EQ(world_.BytesLent(), kMost * kBytes);
  EXPECT_THAT(world_.HowRead(), HasSubstr("in place: 0 of 1; its process has borrowed"));
  pulled.clear();
  world_.AwaitNothingLent();
  const Tensor again = world_.Pull(world_.Make("w0", 0));
  EXPECT_EQ(world_.BytesLent(), kBytes);
}

// ---- workers that share nothing

void ExpectCopied(World& world) {
  const RRef w = world.Make("w");
  const Tensor pulled = world.Pull(w);
  EXPECT_TRUE(AllAre(2, ElementsThere(pulled)));
  EXPECT_EQ(pulled.device(), &world.trainers_device());
  EXPECT_THAT(world.loans().lent(), IsEmpty());
  EXPECT_THAT(world.HowRead(), HasSubstr("copied"));
}

TEST(CopiedTest, AnOwnerThatDoesNotShare) {
  World world(Sharing(false));
  ExpectCopied(world);
  EXPECT_THAT(world.HowRead(), HasSubstr("this worker does not share devices"));
}

TEST(CopiedTest, ATrainerThatDoesNotShare) {
  World world(Sharing(), /*trainer_shares=*/false);
  ExpectCopied(world);
}

TEST(CopiedTest, AnOwnerThatIsReachedOverTheNetwork) {
  World world(Sharing(), /*trainer_shares=*/true, /*trainer_shares_memory=*/false);
  ExpectCopied(world);
}

// ---- returns that are made up

class MadeUpReturnsTest : public ::testing::Test {
 protected:
  absl::Status Return(const std::string& key, const std::vector<uint64_t>& loans) {
    v1::ReturnLoans message;
    message.set_key(key);
    message.mutable_loans()->Add(loans.begin(), loans.end());
    rpc::RpcAgent& agent = stranger_.runtime().agent();
    agent.AddPeer("owner", world_.host().owner().address().address);
    return rpc::Ask(agent, device_loans::kReturnLoans, {"owner"}, message, {}).Wait().status();
  }

  World world_;
  TestOwner stranger_{"stranger"};
};

TEST_F(MadeUpReturnsTest, LoansOfOthersAndLoansThatAreNotOutAreLeftAlone) {
  const RRef w = world_.Make("w");
  const Tensor pulled = world_.Pull(w);
  std::vector<uint64_t> all = {0, UINT64_MAX};
  for (uint64_t i = 1; i < 100; ++i) all.push_back(i);
  for (const std::string& key : {std::string(), std::string(16, '\0'), std::string(5000, 'x')})
    EXPECT_TRUE(Return(key, all).ok());
  EXPECT_EQ(world_.BytesLent(), kBytes);
  EXPECT_TRUE(AllAre(2, ElementsThere(pulled)));
}

}  // namespace
}  // namespace psd
