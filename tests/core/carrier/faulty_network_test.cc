#include "core/carrier/faulty/faulty_network.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/carrier/faulty/fault_plan.h"

namespace psd::carrier {
namespace {

// Keeps the headers of messages and the reasons of ends in order. Used by one thread.
class Log : public LinkHandler {
 public:
  void OnMessage(Message message) override { heard.push_back(message.header); }
  void OnRefused(std::string header, absl::Status) override { heard.push_back(header); }
  void OnClosed(absl::Status reason) override { closed.push_back(reason.code()); }
  std::vector<std::string> heard;
  std::vector<absl::StatusCode> closed;
};

// Two carriers "a" and "b", whose network the test drives step by step.
class FaultyNetworkTest : public testing::Test {
 protected:
  explicit FaultyNetworkTest(uint64_t seed = 1) {
    FaultyNetworkOptions options;
    options.seed = seed;
    options.latency = absl::Microseconds(50);
    network_ = FaultyNetwork::Create(options);
    a_ = network_->NewCarrier("a");
    b_ = network_->NewCarrier("b");
    auto address = b_->Listen("b:0", [this](std::shared_ptr<Link> link) {
      far_link_ = std::move(link);
      return far_;
    });
    address_ = *address;
  }

  void Connect(absl::Duration timeout = absl::Seconds(1)) {
    a_->Connect(address_, timeout, near_, [this](absl::StatusOr<std::shared_ptr<Link>> link) {
      outcome_ = link.status();
      if (link.ok()) link_ = *link;
    });
  }

  void Open() {
    Connect();
    network_->RunUntilIdle();
    ASSERT_TRUE(outcome_.ok()) << outcome_;
  }

  void SendNumbers(int count) {
    for (int i = 1; i <= count; ++i) {
      Message message;
      message.header = absl::StrCat(i);
      absl::Status ignored = link_->Send(std::move(message));
      static_cast<void>(ignored);
    }
  }

  std::shared_ptr<FaultyNetwork> network_;
  std::shared_ptr<Log> near_ = std::make_shared<Log>();
  std::shared_ptr<Log> far_ = std::make_shared<Log>();
  std::shared_ptr<Carrier> a_;
  std::shared_ptr<Carrier> b_;
  std::string address_;
  absl::Status outcome_ = absl::UnknownError("not told");
  std::shared_ptr<Link> link_;
  std::shared_ptr<Link> far_link_;
};

TEST_F(FaultyNetworkTest, NothingHappensByItself) {
  Connect();
  EXPECT_EQ(outcome_.code(), absl::StatusCode::kUnknown);
  EXPECT_TRUE(network_->Step());
  network_->RunUntilIdle();
  EXPECT_TRUE(outcome_.ok());
  EXPECT_FALSE(network_->Step());
}

TEST_F(FaultyNetworkTest, RPC_62_PlannedFaultsHitTheirMessages) {
  Open();
  network_->At("a", "b", 2, FaultAction::kDrop);
  network_->At("a", "b", 3, FaultAction::kDuplicate);
  network_->At("a", "b", 4, FaultAction::kReorder);
  SendNumbers(5);
  network_->RunUntilIdle();
  EXPECT_EQ(far_->heard, (std::vector<std::string>{"1", "3", "3", "5", "4"}));
}

TEST_F(FaultyNetworkTest, ACutEndsTheLinkAtBothEndsAndLosesWhatWasUnderWay) {
  Open();
  network_->At("a", "b", 3, FaultAction::kCut);
  SendNumbers(5);
  network_->RunUntilIdle();
  EXPECT_TRUE(far_->heard.empty());
  EXPECT_EQ(near_->closed, std::vector<absl::StatusCode>{absl::StatusCode::kUnavailable});
  EXPECT_EQ(far_->closed, std::vector<absl::StatusCode>{absl::StatusCode::kUnavailable});
  EXPECT_EQ(link_->Send(Message()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(FaultyNetworkTest, RPC_62_DelaysKeepTheOrder) {
  Open();
  Faults faults;
  faults.max_delay = absl::Milliseconds(10);
  network_->SetFaults("*", "*", faults);
  SendNumbers(20);
  network_->RunUntilIdle();
  ASSERT_EQ(far_->heard.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(far_->heard[i], absl::StrCat(i + 1));
}

TEST_F(FaultyNetworkTest, ABlackHoleIsSilentThenEndsTheLink) {
  Open();
  network_->SetBlackHole("a", "b", true);
  SendNumbers(1);
  network_->RunFor(absl::Seconds(2));
  EXPECT_TRUE(far_->heard.empty());
  EXPECT_TRUE(near_->closed.empty());
  network_->RunFor(absl::Seconds(2));
  EXPECT_EQ(near_->closed.size(), 1u);
  EXPECT_EQ(far_->closed.size(), 1u);
}

TEST_F(FaultyNetworkTest, AShortBlackHoleOnlyLosesMessages) {
  Open();
  network_->SetBlackHole("a", "b", true);
  SendNumbers(1);
  network_->SetBlackHole("a", "b", false);
  SendNumbers(2);
  network_->RunUntilIdle();
  EXPECT_EQ(far_->heard, (std::vector<std::string>{"1", "2"}));
  EXPECT_TRUE(near_->closed.empty());
}

TEST_F(FaultyNetworkTest, ConnectingIntoABlackHoleTimesOut) {
  network_->SetBlackHole("b", "a", true);
  Connect(absl::Milliseconds(100));
  network_->RunFor(absl::Seconds(1));
  EXPECT_EQ(outcome_.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(far_->closed.size(), 1u) << "the half-open end learns of it";
}

TEST_F(FaultyNetworkTest, RefusalIsToldAndLifted) {
  network_->SetRefuse("b", true);
  Connect();
  network_->RunUntilIdle();
  EXPECT_EQ(outcome_.code(), absl::StatusCode::kUnavailable);
  network_->SetRefuse("b", false);
  Open();
}

TEST_F(FaultyNetworkTest, ACrashIsHeardByPeersOnlyAndFreesNameAndAddress) {
  Open();
  network_->Crash("b");
  network_->RunUntilIdle();
  EXPECT_EQ(near_->closed, std::vector<absl::StatusCode>{absl::StatusCode::kUnavailable});
  EXPECT_TRUE(far_->closed.empty());
  std::shared_ptr<Carrier> again = network_->NewCarrier("b");
  EXPECT_TRUE(again->Listen(address_, [](std::shared_ptr<Link>) { return nullptr; }).ok());
}

TEST(FaultyNetwork, TheSeedDeterminesEverything) {
  auto run = [](uint64_t seed) {
    FaultyNetworkOptions options;
    options.seed = seed;
    auto network = FaultyNetwork::Create(options);
    Faults faults;
    faults.drop = faults.duplicate = faults.reorder = 0.2;
    faults.max_delay = absl::Milliseconds(5);
    network->SetFaults("*", "*", faults);
    auto log = std::make_shared<Log>();
    auto server = network->NewCarrier("server");
    auto address = server->Listen("s", [log](std::shared_ptr<Link>) { return log; });
    auto client = network->NewCarrier("client");
    client->Connect(*address, absl::Seconds(1), std::make_shared<Log>(),
                    [](absl::StatusOr<std::shared_ptr<Link>> link) {
                      for (int i = 0; i < 100; ++i) {
                        Message message;
                        message.header = absl::StrCat(i);
                        EXPECT_TRUE((*link)->Send(std::move(message)).ok());
                      }
                    });
    network->RunUntilIdle();
    return log->heard;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(FaultPlan, TheLastMatchingRuleCounts) {
  FaultPlan plan(1);
  Faults drop;
  drop.drop = 1;
  plan.SetFaults("*", "*", drop);
  EXPECT_EQ(plan.Decide("a", "b").copies, 0);
  plan.SetFaults("a", "*", {});
  EXPECT_EQ(plan.Decide("a", "b").copies, 1);
  EXPECT_EQ(plan.Decide("b", "a").copies, 0);
}

}  // namespace
}  // namespace psd::carrier
