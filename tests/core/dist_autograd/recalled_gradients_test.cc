// The trainer asks for gradients back that it has lent with a message that failed.

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/autograd/variable.h"
#include "core/device_loans/device_loans.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/rpc/rpc_agent.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/worker.pb.h"
#include "tests/core/dist_autograd/lent_gradients_fixture.h"
#include "tests/core/dist_autograd/test_worker.h"
#include "tests/core/fake_rpc.h"

namespace psd::dist_autograd {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr char kLostGradient[] = "a gradient was lost";

bool IsLending(const rpc::Request& request) {
  return request.method == kGradient && request.attachments.size() > 1;
}

class RecalledGradientsTest : public LentGradientsTest {
 protected:
  // Runs a pass whose gradient the owner uses. Its loan has the number 1.
  void LendOne() {
    ShowAll();
    ASSERT_TRUE(Backward(3).ok());
    ASSERT_EQ(loans(), 1);
    in_use_ = std::exchange(context_, trainer_.worker.autograd->NewContext());
  }
  void ReleaseInUse() {
    trainer_.worker.autograd->Release(in_use_->id());
    RunUntilNothingIsLent();
  }
  // Fails a pass in `context_`. The test loses its message.
  void FailBackward() {
    const absl::Status back = Backward(4);
    EXPECT_EQ(back.message(), absl::StrCat("error on owner: ", kLostGradient));
  }
  void RunRecalls(int count) {
    RunUntil([this, count] { return network_.Count(kReturn) >= count; });
    network_.RunAll();
  }

  ContextPtr in_use_;
};

// The owner's half.
TEST_F(RecalledGradientsTest, TheAnswerNamesTheLoansThatAreNotUsed) {
  LendOne();
  v1::ReturnLoans recall;
  for (const uint64_t loan : {3, 1, 2}) recall.add_recalled(loan);
  rpc::Request request;
  request.method = kReturn;
  request.payload.header = recall.SerializeAsString();
  for (int again = 0; again < 2; ++again) {
    const absl::StatusOr<rpc::Reply> reply = Send(request);
    ASSERT_TRUE(reply.ok()) << reply.status();
    v1::ReturnLoansReply unused;
    ASSERT_TRUE(unused.ParseFromString(reply->payload.header));
    EXPECT_THAT(unused.unused(), ElementsAre(3, 2));
  }
  EXPECT_EQ(loans(), 1);
  ReleaseInUse();
}

// The trainer's half.
TEST_F(RecalledGradientsTest, LoansThatTheAnswerNamesEndAndTheOthersWhenTheyAreDropped) {
  LendOne();
  bool lost = true;
  v1::ReturnLoans recall;
  network_.SetFilter([&](const std::string&, const std::string&, const rpc::Request& request) {
    if (IsLending(request)) return absl::UnavailableError(kLostGradient);
    if (request.method != kReturn) return absl::OkStatus();
    recall.ParseFromString(request.payload.header);
    return lost ? absl::UnavailableError("a recall was lost") : absl::OkStatus();
  });
  FailBackward();
  RunRecalls(1);
  EXPECT_THAT(recall.recalled(), ElementsAre(2));
  EXPECT_EQ(loans(), 2);
  lost = false;
  trainer_.loans->Recall({"owner", 2}, {1});
  RunRecalls(2);
  EXPECT_THAT(recall.recalled(), UnorderedElementsAre(1, 2));
  EXPECT_EQ(loans(), 1);
  context_ = in_use_;
  EXPECT_EQ(Collected(), 3);
  EXPECT_TRUE(CollectedThere());
  ReleaseInUse();
  EXPECT_EQ(network_.Count(kReturn), 3) << "the owner has returned one, and nothing was recalled";
}

TEST_F(RecalledGradientsTest, ARecallWhoseAnswerIsLostIsMadeAgain) {
  ShowAll();
  bool lost = true;
  network_.SetFilter([&](const std::string&, const std::string&, const rpc::Request& request) {
    if (!lost) return absl::OkStatus();
    if (IsLending(request)) return absl::UnavailableError(kLostGradient);
    if (request.method != kReturn) return absl::OkStatus();
    lost = false;
    trainer_.worker.agent.StartCall("owner", request, {});  // is answered to nobody
    return absl::UnavailableError("an answer was lost");
  });
  FailBackward();
  RunRecalls(2);
  EXPECT_EQ(loans(), 1);
  ASSERT_TRUE(Backward(5).ok());
  RunRecalls(3);
  EXPECT_EQ(loans(), 1) << "the new one";
  EXPECT_TRUE(CollectedThere());
  EXPECT_EQ(Collected(), 5);
}

// All loans of a message are recalled together, and none of them is borrowed when it comes late.
TEST_F(RecalledGradientsTest, ALateMessageTakesNothingAndTheNextOneIsLent) {
  owner_.worker.functions["weight twice"] = [this](TestWorker&, const ContextPtr&,
                                                   const Variables&) {
    return Variables{weight_, weight_};
  };
  ShowAll();
  v1::ReturnLoans recall;
  network_.SetFilter([&](const std::string&, const std::string&, const rpc::Request& request) {
    if (request.method == kReturn) recall.ParseFromString(request.payload.header);
    if (!IsLending(request)) return absl::OkStatus();
    lost_ = request;
    return absl::UnavailableError(kLostGradient);
  });
  const Variables both = trainer_.worker.Call(context_, "owner", "weight twice", {});
  EXPECT_FALSE(BackwardFrom(both, {OnTheDevice(3), OnTheDevice(4)}).ok());
  RunRecalls(1);
  EXPECT_THAT(recall.recalled(), ElementsAre(1, 2));
  EXPECT_EQ(loans(), 0);
  network_.SetFilter(nullptr);
  const absl::StatusOr<rpc::Reply> late = Send(lost_);
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_EQ(RefusalIn(late).code(), absl::StatusCode::kAborted) << RefusalIn(late);
  const int messages = network_.Count(kGradient);
  ASSERT_TRUE(Backward(5).ok());
  EXPECT_EQ(network_.Count(kGradient), messages + 1);
  EXPECT_TRUE(CollectedThere());
  EXPECT_EQ(Collected(), 5);
}

// A message that follows one that a link has overtaken does not wait for that link, and may fail
// before the link is ready.
TEST_F(RecalledGradientsTest, ARecallBehindOneThatALinkHasOvertakenIsTriedAgain) {
  LendOne();
  int recalls = 0;
  network_.SetFilter([&](const std::string&, const std::string& to, const rpc::Request& request) {
    if (IsLending(request)) return absl::UnavailableError(kLostGradient);
    if (request.method != kReturn || to != "owner") return absl::OkStatus();
    if (++recalls == 1) {
      Show(owner_, trainer_);
      trainer_.loans->Recall({"owner", 2}, {1});
    }
    return recalls == 2 ? absl::UnavailableError("the link is not ready") : absl::OkStatus();
  });
  FailBackward();
  RunRecalls(1);
  EXPECT_EQ(recalls, 3);
  EXPECT_EQ(loans(), 1);
  ReleaseInUse();
}

}  // namespace
}  // namespace psd::dist_autograd
