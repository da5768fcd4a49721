#include "core/rref/creations.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace psd::rref {
namespace {

constexpr GlobalId kValue{7, 1};
constexpr GlobalId kOther{7, 2};

// A call that the tests use only as an identity.
class Waiting : public rpc::ServerCall {
 public:
  const rpc::PeerInfo& caller() const override { return caller_; }
  uint64_t session_epoch() const override { return 1; }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  const std::string& method() const override { return caller_.name; }
  rpc::Payload& payload() override { return payload_; }
  const std::string* attachment(uint32_t) const override { return nullptr; }
  absl::Status Charge(size_t) override { return absl::OkStatus(); }
  void ForgetMessage() override {}
  bool cancelled() const override { return false; }
  void OnCancel(Task) override {}
  bool BeginApply() override { return true; }
  void OnAnswerDropped(Task) override {}
  void Reply(absl::StatusOr<rpc::Payload>, std::vector<rpc::Attachment>) override {}

 private:
  rpc::PeerInfo caller_;
  rpc::Payload payload_;
};

class CreationsTest : public ::testing::Test {
 protected:
  Creations creations_;
  const Creations::Call a_ = std::make_shared<Waiting>(), b_ = std::make_shared<Waiting>();
};

TEST_F(CreationsTest, EveryWaitEndsOnceAtItsEvent) {
  EXPECT_TRUE(creations_.AwaitBegin(kValue, a_));
  EXPECT_FALSE(creations_.UnderWay(kValue)) << "expected only";
  EXPECT_FALSE(creations_.AwaitEnd(kValue, b_)) << "nothing is under way";
  EXPECT_EQ(creations_.Begin(kValue), Creations::Calls{a_});
  EXPECT_TRUE(creations_.UnderWay(kValue));
  EXPECT_FALSE(creations_.AwaitBegin(kValue, a_));
  EXPECT_TRUE(creations_.AwaitEnd(kValue, a_));
  EXPECT_TRUE(creations_.AwaitEnd(kValue, b_));
  EXPECT_TRUE(creations_.End(kOther).empty());
  EXPECT_EQ(creations_.End(kValue), (Creations::Calls{a_, b_}));
  EXPECT_FALSE(creations_.UnderWay(kValue));
  EXPECT_TRUE(creations_.End(kValue).empty());
}

TEST_F(CreationsTest, WhoIsForgottenIsNotTold) {
  EXPECT_TRUE(creations_.AwaitBegin(kValue, a_));
  EXPECT_FALSE(creations_.Forget(kOther, a_));
  EXPECT_TRUE(creations_.Forget(kValue, a_));
  EXPECT_FALSE(creations_.Forget(kValue, a_));
  EXPECT_TRUE(creations_.Begin(kValue).empty());
  EXPECT_TRUE(creations_.AwaitEnd(kValue, a_));
  EXPECT_TRUE(creations_.AwaitEnd(kValue, b_));
  EXPECT_TRUE(creations_.Forget(kValue, a_));
  EXPECT_TRUE(creations_.UnderWay(kValue)) << "whoever waits or not";
  EXPECT_EQ(creations_.End(kValue), Creations::Calls{b_});
}

TEST_F(CreationsTest, AllThatWaitMayBeTakenAtOnce) {
  creations_.Begin(kValue);
  EXPECT_TRUE(creations_.AwaitEnd(kValue, a_));
  EXPECT_TRUE(creations_.AwaitBegin(kOther, b_));
  EXPECT_EQ(creations_.TakeAll().size(), 2u);
  EXPECT_TRUE(creations_.TakeAll().empty());
  EXPECT_TRUE(creations_.UnderWay(kValue)) << "it goes on";
}

}  // namespace
}  // namespace psd::rref
