#include "bench/runner.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::bench {
namespace {

using ::testing::HasSubstr;

constexpr char kFakePeer[] = "tests/bench/fake_peer.py";

// Each block has three operations, which take 1, 2 and 3 seconds. The floor takes 1 second.
class FakeWorkload : public Workload {
 public:
  explicit FakeWorkload(absl::Status start = absl::OkStatus()) : start_(std::move(start)) {}
  absl::Status Start(const Environment&) override { return start_; }
  absl::StatusOr<std::vector<double>> RunPsd() override { return std::vector<double>{3, 1, 2}; }
  absl::StatusOr<std::optional<double>> RunFloor() override { return 1.0; }

 private:
  const absl::Status start_;
};

Case FakeCase(const std::string& name) {
  Case one;
  one.name = name;
  one.unit = {"ms", 1e3};
  one.latency = true;
  one.blocks = 3;
  one.make = [] { return std::make_unique<FakeWorkload>(); };
  return one;
}

TEST(Runner, ComparesWithTheFloor) {
  const auto row = RunCase(FakeCase("a"), {}, nullptr);
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_DOUBLE_EQ(row->value, 2000);
  EXPECT_NEAR(row->p99.value(), 3000, 1);
  EXPECT_DOUBLE_EQ(row->floor.value(), 1000);
  EXPECT_DOUBLE_EQ(row->efficiency.value(), 0.5);
  EXPECT_DOUBLE_EQ(row->spread.value(), 0);
  EXPECT_FALSE(row->peer.has_value());
  EXPECT_EQ(row->carrier, "grpc");
}

TEST(Runner, NamesTheCarrierOfWhatIsSent) {
  Environment environment;
  environment.carrier = "shm";
  Case one = FakeCase("a");
  EXPECT_EQ(RunCase(one, environment, nullptr)->carrier, "shm");
  one.sends = false;
  EXPECT_EQ(RunCase(one, environment, nullptr)->carrier, "none");
}

TEST(Runner, ComparesWithThePeer) {
  const auto peer = Peer::Start(kFakePeer, "tcp");
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ((*peer)->description(), "fake tcp");
  const auto row = RunCase(FakeCase("a"), {}, peer->get());
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_DOUBLE_EQ(row->peer.value(), 4000);
  EXPECT_DOUBLE_EQ(row->speedup.value(), 2);
  EXPECT_DOUBLE_EQ(row->spread.value(), 0.5);
}

TEST(Runner, RatesAreShownTheOtherWayRound) {
  Case one = FakeCase("a");
  one.unit = {"calls/s", 1, /*rate=*/true};
  one.latency = false;
  const auto row = RunCase(one, {}, nullptr);
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_DOUBLE_EQ(row->value, 0.5);
  EXPECT_DOUBLE_EQ(row->floor.value(), 1);
  EXPECT_DOUBLE_EQ(row->efficiency.value(), 0.5);
  EXPECT_FALSE(row->p99.has_value());
}

TEST(Runner, FailuresAreTold) {
  Case one = FakeCase("a");
  one.make = [] { return std::make_unique<FakeWorkload>(absl::UnavailableError("no owner")); };
  EXPECT_EQ(RunCase(one, {}, nullptr).status().code(), absl::StatusCode::kUnavailable);

  const auto peer = Peer::Start(kFakePeer, "tcp");
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_THAT(std::string(RunCase(FakeCase("broken"), {}, peer->get()).status().message()),
              HasSubstr("it broke"));
}

TEST(Peer, MissingPeerSaysWhatToInstall) {
  const absl::Status status = Peer::Start("/no/such/script.py", "tcp").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("python3-torch"));
}

}  // namespace
}  // namespace psd::bench
