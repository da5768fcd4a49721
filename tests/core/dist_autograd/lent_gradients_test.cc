// Gradients that the owner reads where the trainer has them: calls that are lost, and messages that
// come after their loans were recalled.

#include <fcntl.h>
#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/future.h"
#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "core/carrier/passed_descriptors.h"
#include "core/device_loans/borrower.h"
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

using ::testing::IsEmpty;

TEST_F(LentGradientsTest, TheOwnerHasTheGradientWhereTheTrainerHasIt) {
  ShowAll();
  ASSERT_TRUE(Backward(3).ok());
  EXPECT_EQ(network_.Count(kGradient), 1);
  EXPECT_EQ(loans(), 1);
  EXPECT_TRUE(CollectedThere());
  EXPECT_EQ(Collected(), 3);
  trainer_.worker.autograd->Release(context_->id());
  RunUntilNothingIsLent();
}

TEST_F(LentGradientsTest, BothMustHaveShownTheDevice) {
  ASSERT_TRUE(Backward(1).ok());
  Show(trainer_, owner_);
  ASSERT_TRUE(Backward(1).ok());
  EXPECT_EQ(loans(), 0);
  EXPECT_EQ(network_.Count(kGradient), 2);
  Show(owner_, trainer_);
  context_ = trainer_.worker.autograd->NewContext();  // a sum would not keep what was lent
  ASSERT_TRUE(Backward(1).ok());
  EXPECT_EQ(loans(), 1);
}

TEST_F(LentGradientsTest, AnOwnerThatWasShownNothingGetsCopies) {
  trainer_.loans->ForPeer(owner_.process);  // and they are lost
  Show(owner_, trainer_);
  ASSERT_TRUE(Backward(3).ok());
  EXPECT_EQ(network_.Count(kGradient), 2);
  EXPECT_EQ(Collected(), 3);
  RunUntilNothingIsLent();
  ASSERT_TRUE(Backward(4).ok());
  EXPECT_EQ(network_.Count(kGradient), 3) << "nothing more is lent";
  ShowAll();                                          // on the next link
  context_ = trainer_.worker.autograd->NewContext();  // a sum would not keep what is lent
  ASSERT_TRUE(Backward(5).ok());
  EXPECT_EQ(network_.Count(kGradient), 4);
  EXPECT_TRUE(CollectedThere());
}

TEST_F(LentGradientsTest, AnOwnerWithoutRoomToOpenTheDeviceGetsCopiesUntilTheNextLink) {
  ShowAll();
  owner_.crowded->SetCrowded(true);
  ASSERT_TRUE(Backward(1).ok());
  EXPECT_EQ(network_.Count(kGradient), 2) << "there may be room for the next ones";
  ASSERT_TRUE(Backward(1).ok());
  EXPECT_EQ(network_.Count(kGradient), 4) << "the owner cannot open it any more";
  ASSERT_TRUE(Backward(1).ok());
  EXPECT_EQ(network_.Count(kGradient), 5);
  EXPECT_EQ(Collected(), 3);
  RunUntilNothingIsLent();
  owner_.crowded->SetCrowded(false);
  ShowAll();
  context_ = trainer_.worker.autograd->NewContext();  // a sum would not keep what is lent
  ASSERT_TRUE(Backward(4).ok());
  EXPECT_EQ(network_.Count(kGradient), 6);
  EXPECT_TRUE(CollectedThere());
}

// An owner without a free thread asks for copies. The next gradients are lent again.
TEST_F(LentGradientsTest, AnOwnerThatIsBusyGetsCopies) {
  ShowAll();
  const Future<Unit> done = StartBackward(3);
  owner_.worker.executor.full = true;
  const absl::Status back = Finish(done);
  ASSERT_TRUE(back.ok()) << back;
  EXPECT_EQ(network_.Count(kGradient), 2);
  EXPECT_EQ(Collected(), 3);
  RunUntilNothingIsLent();
  owner_.worker.executor.full = false;
  context_ = trainer_.worker.autograd->NewContext();
  ASSERT_TRUE(Backward(4).ok());
  EXPECT_EQ(network_.Count(kGradient), 3);
  EXPECT_TRUE(CollectedThere());
}

TEST_F(LentGradientsTest, ATrainerThatIsBusySendsCopiesToo) {
  ShowAll();
  const Future<Unit> done = StartBackward(3);
  owner_.worker.executor.full = true;
  trainer_.worker.executor.full = true;
  const absl::Status back = Finish(done);
  ASSERT_TRUE(back.ok()) << back;
  EXPECT_EQ(network_.Count(kGradient), 2);
  EXPECT_EQ(Collected(), 3);
  RunUntilNothingIsLent();
}

// A process that passes devices of its own in the owner's name is taken for the owner's. A loan
// that is counted as that process's would end with it.
TEST_F(LentGradientsTest, AnOwnerBorrowsNothingThatIsLentToAnotherProcess) {
  const auto liar = std::make_shared<carrier::HostProcess>("a liar");
  for (const carrier::NamedDescriptor& each : owner_.loans->ForPeer(trainer_.process)) {
    UniqueFd fd(fcntl(each.fd->get(), F_DUPFD_CLOEXEC, 0));
    ASSERT_TRUE(trainer_.loans->OnPassed(liar, each.name, std::move(fd)).ok());
  }
  trainer_.loans->ForPeer(liar);
  ShowAll();
  ASSERT_TRUE(Backward(3).ok());
  EXPECT_EQ(network_.Count(kGradient), 2);
  EXPECT_EQ(Collected(), 3);
  EXPECT_FALSE(CollectedThere());
  RunUntilNothingIsLent();
}

// The owner cannot open what it was shown. From then on it gets copies.
TEST_F(LentGradientsTest, WhatCannotBeReadIsSentAgainAsCopies) {
  for (const auto& each : trainer_.loans->ForPeer(owner_.process)) {
    UniqueFd other(memfd_create("no device", MFD_CLOEXEC));
    ASSERT_TRUE(owner_.loans->OnPassed(trainer_.process, each.name, std::move(other)).ok());
  }
  Show(owner_, trainer_);
  const absl::Status back = Backward(3);
  ASSERT_TRUE(back.ok()) << back;
  EXPECT_EQ(network_.Count(kGradient), 2);
  EXPECT_FALSE(CollectedThere());
  EXPECT_EQ(Collected(), 3);
  RunUntilNothingIsLent();
  ASSERT_TRUE(Backward(4).ok());
  EXPECT_EQ(network_.Count(kGradient), 3);
  EXPECT_EQ(Collected(), 7);
  EXPECT_THAT(trainer_.loans->lent(), IsEmpty());
}

TEST_F(LentGradientsTest, ALostCallFailsThePassAndItsLoansComeBack) {
  ShowAll();
  LoseLending();
  const absl::Status back = Backward(3);
  EXPECT_EQ(back.code(), absl::StatusCode::kUnavailable) << back;
  RunUntilNothingIsLent();
  network_.SetFilter(nullptr);
  ASSERT_TRUE(Backward(4).ok());
  EXPECT_TRUE(CollectedThere());
  EXPECT_EQ(Collected(), 4);
}

// The owner has promised to borrow nothing of it any more.
TEST_F(LentGradientsTest, AMessageThatComesAfterItsLoansWereRecalledIsRefused) {
  ShowAll();
  LoseLending();
  EXPECT_FALSE(Backward(3).ok());
  RunUntilNothingIsLent();
  network_.SetFilter(nullptr);
  const absl::StatusOr<rpc::Reply> late = Send(lost_);
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_EQ(RefusalIn(late).code(), absl::StatusCode::kAborted) << RefusalIn(late);
  EXPECT_EQ(Collected(), 0);
}

// Only its answer is lost. The owner goes on reading what it has borrowed.
TEST_F(LentGradientsTest, ALoanInUseIsNotTakenBackByALostAnswer) {
  ShowAll();
  bool first = true;
  network_.SetFilter([&](const std::string&, const std::string&, const rpc::Request& request) {
    if (request.method != kGradient || !std::exchange(first, false)) return absl::OkStatus();
    // Comes before the trainer learns of anything, and is answered to nobody.
    trainer_.worker.agent.StartCall("owner", request, {});
    return absl::UnavailableError("lost");
  });
  EXPECT_FALSE(Backward(3).ok());
  RunUntil([this] { return network_.Count(kReturn) > 0; });
  network_.RunAll();
  EXPECT_EQ(loans(), 1);
  EXPECT_EQ(Collected(), 3);
  trainer_.worker.autograd->Release(context_->id());
  RunUntilNothingIsLent();
}

TEST_F(LentGradientsTest, ARecallThatCannotBeDeliveredWaits) {
  ShowAll();
  bool lost = true;
  network_.SetFilter(
      [&lost](const std::string&, const std::string& to, const rpc::Request& request) {
        const bool named = request.method == kGradient || request.method == kReturn;
        return lost && named && to == "owner" ? absl::UnavailableError("lost") : absl::OkStatus();
      });
  EXPECT_FALSE(Backward(3).ok());
  RunUntil([this] { return network_.Count(kReturn) > 0; });
  network_.RunAll();
  EXPECT_EQ(loans(), 1);
  lost = false;
  ASSERT_TRUE(Backward(4).ok());
  RunUntil([this] { return loans() == 1; });  // the new one
  EXPECT_EQ(Collected(), 4);
}

TEST_F(LentGradientsTest, ARecallThatCannotBeDeliveredIsTriedAgainOnTheNextLink) {
  ShowAll();
  const Future<Unit> done = StartBackward(3);
  network_.SetFilter([](const std::string&, const std::string& to, const rpc::Request&) {
    return to == "owner" ? absl::UnavailableError("lost") : absl::OkStatus();
  });
  EXPECT_FALSE(Finish(done).ok());
  RunUntil([this] { return network_.Count(kReturn) > 0; });
  network_.RunAll();
  EXPECT_EQ(loans(), 1);
  network_.SetFilter(nullptr);
  Show(owner_, trainer_);
  RunUntilNothingIsLent();
}

// The link opens before the failure of the message is known.
TEST_F(LentGradientsTest, ARecallThatFailsWhileALinkOpensIsTriedAgain) {
  ShowAll();
  const Future<Unit> done = StartBackward(3);
  bool linked = false;
  network_.SetFilter([&](const std::string&, const std::string& to, const rpc::Request& request) {
    if (to != "owner" || linked) return absl::OkStatus();
    if (request.method == kReturn) {
      linked = true;
      Show(owner_, trainer_);
    }
    return absl::UnavailableError("lost");
  });
  EXPECT_FALSE(Finish(done).ok());
  RunUntil([&linked] { return linked; });
  network_.RunAll();
  EXPECT_EQ(network_.Count(kReturn), 2);
  EXPECT_EQ(loans(), 0);
}

// No message asks for loans that have ended.
TEST_F(LentGradientsTest, LoansThatHaveEndedAreNotRecalled) {
  ShowAll();
  ASSERT_TRUE(Backward(3).ok());
  trainer_.loans->Recall({"owner", 2}, {77, 78});
  network_.RunAll();
  EXPECT_EQ(network_.Count(kReturn), 0);
  EXPECT_EQ(loans(), 1);
}

TEST_F(LentGradientsTest, WhatComesBackWithARecallThatIsRefusedHasEnded) {
  ShowAll();
  ASSERT_TRUE(Backward(3).ok());
  v1::ReturnLoans recall;
  recall.add_recalled(1);
  rpc::Request request;
  request.method = kReturn;
  for (size_t i = 0; i < device_loans::DeviceBorrower::kMostStrangers; ++i) {
    testing::FakeAgent stranger(network_, {"stranger", 1000 + i});
    request.payload.header = recall.SerializeAsString();
    stranger.StartCall("trainer", request, {});
    network_.RunAll();
  }
  testing::FakeAgent last(network_, {"stranger", 9});
  const std::string key = trainer_.loans->OfferOf({"owner", 2}, *trainer_.device)->key();
  recall.set_key(key);
  recall.add_loans(1);
  request.payload.header = recall.SerializeAsString();
  const Future<rpc::Reply> reply = last.StartCall("trainer", request, {}).reply();
  network_.RunAll();
  ASSERT_TRUE(reply.Wait().ok()) << reply.Wait().status();
  v1::ReturnLoansReply unused;
  ASSERT_TRUE(unused.ParseFromString(reply.Wait()->payload.header));
  EXPECT_EQ(unused.unused_size(), 0);
  EXPECT_EQ(loans(), 0);
}

TEST_F(LentGradientsTest, AWorkerThatSharesNothingUsesNoLoan) {
  const auto nothing = device_loans::DeviceLoans::Create(9, {}, NewNullLogger());
  testing::FakeAgent agent(network_, {"nothing", 9});
  nothing->Serve(agent);
  v1::ReturnLoans recall;
  recall.add_recalled(1);
  recall.add_recalled(7);
  rpc::Request request;
  request.method = kReturn;
  request.payload.header = recall.SerializeAsString();
  const Future<rpc::Reply> reply = trainer_.worker.agent.StartCall("nothing", request, {}).reply();
  network_.RunAll();
  v1::ReturnLoansReply unused;
  ASSERT_TRUE(unused.ParseFromString(reply.Wait()->payload.header));
  EXPECT_EQ(unused.unused_size(), 2);
  nothing->Close();
}

TEST_F(LentGradientsTest, OnlyLoansThatAreRecalledEndByTheAnswer) {
  ShowAll();
  ASSERT_TRUE(Backward(3).ok());
  const ContextPtr other = std::exchange(context_, trainer_.worker.autograd->NewContext());
  ASSERT_TRUE(Backward(4).ok());
  EXPECT_EQ(loans(), 2);
  testing::FakeAgent hostile(network_, {"hostile", 9});
  bool recalled = false;
  hostile.RegisterMethod({kReturn, rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread,
                          [&recalled](const std::shared_ptr<rpc::ServerCall>& call) {
                            recalled = true;
                            v1::ReturnLoansReply reply;
                            for (uint64_t loan = 0; loan < 100; ++loan) reply.add_unused(loan);
                            call->Reply(rpc::Payload{reply.SerializeAsString(), {}});
                          }});
  trainer_.loans->Recall({"hostile", 9}, {2});
  network_.RunAll();
  EXPECT_TRUE(recalled);
  EXPECT_EQ(loans(), 1);
}

// A recall may be for other loans: what it overtakes is copied.
TEST_F(LentGradientsTest, WhatARecallHasOvertakenIsSentAgainAsCopies) {
  ShowAll();
  v1::ReturnLoans recall;
  recall.add_recalled(1);
  rpc::Request request;
  request.method = kReturn;
  request.payload.header = recall.SerializeAsString();
  ASSERT_TRUE(Send(request).ok());
  ASSERT_TRUE(Backward(3).ok());
  EXPECT_EQ(network_.Count(kGradient), 2);
  EXPECT_EQ(Collected(), 3);
  RunUntilNothingIsLent();
  context_ = trainer_.worker.autograd->NewContext();  // a sum would not keep what is lent
  ASSERT_TRUE(Backward(4).ok());
  EXPECT_EQ(network_.Count(kGradient), 3) << "the next one is lent";
  EXPECT_EQ(loans(), 1);
}

TEST_F(LentGradientsTest, AnOwnerThatEndsHoldsNothing) {
  ShowAll();
  ASSERT_TRUE(Backward(3).ok());
  EXPECT_EQ(loans(), 1);
  owner_.process->End();
  EXPECT_EQ(loans(), 0);
}

}  // namespace
}  // namespace psd::dist_autograd
