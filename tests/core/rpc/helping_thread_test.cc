// A thread that waits for an answer receives messages itself, and serves the calls among them.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "absl/functional/function_ref.h"
#include "core/base/memory_budget.h"
#include "core/base/memory_scope.h"
#include "core/base/thread_modes.h"
#include "core/rpc/rpc_agent.h"
#include "tests/core/rpc/agent_fixture.h"

namespace psd::rpc {
namespace {

using ServerCallPtr = std::shared_ptr<ServerCall>;

class HelpingThreadTest : public AgentTest {
 protected:
  // Starts a and b, and opens the session of a on b.
  void Start() {
    times_.lease = times_.silence = absl::Hours(1);
    rules_.helps = [this](absl::FunctionRef<bool()> done) {
      while (helps_ && !done()) network_->Step();
    };
    a_ = NewWorker("a");
    b_ = NewWorker("b");
    a_->agent->RegisterMethod({"test.look", MethodKind::kRead, RunsOn::kCarrierThread,
                               [this](const ServerCallPtr& call) { Look(*call); }});
    b_->agent->RegisterMethod({"test.call_back", MethodKind::kRead, RunsOn::kCarrierThread,
                               [this](const ServerCallPtr& call) { CallBack(call); }});
    AddEcho(*b_);
    ASSERT_TRUE(a_->agent->Start("").ok());
    auto address = b_->agent->Start("b:0");
    ASSERT_TRUE(address.ok()) << address.status();
    a_->agent->AddPeer("b", *address);
    ASSERT_TRUE(Sync(*a_, "b", Read("test.echo")).ok());
  }
  // From now on messages move only on threads that help.
  void MoveMessagesByHand() {
    network_->StopThread();
    helps_ = true;
  }
  void TearDown() override {
    helps_ = false;
    network_->StartThread();
    a_.reset();
    b_.reset();
  }

  std::unique_ptr<TestWorker> a_, b_;
  std::thread::id served_on_;
  bool grad_enabled_ = false;
  size_t task_bytes_ = 1;

 private:
  void Look(ServerCall& call) {
    served_on_ = std::this_thread::get_id();
    grad_enabled_ = thread_modes.grad_enabled;
    task_bytes_ = internal::unmoved_charges.task_bytes;
    call.Reply(Payload{});
  }
  void CallBack(const ServerCallPtr& call) {
    b_->agent->StartCall("a", Read("test.look"), {})
        .reply()
        .OnReady([call](const absl::StatusOr<Reply>& looked) {
          if (!looked.ok()) return call->Reply(looked.status());
          call->Reply(Payload{});
        });
  }

  std::atomic<bool> helps_{false};
};

TEST_F(HelpingThreadTest, ServesCallsInFreshModesAndKeepsItsOwn) {
  Start();
  MoveMessagesByHand();
  const std::shared_ptr<MemoryBudget> budget = MemoryBudget::Create(size_t{1} << 20);
  const MemoryScope memory(budget->transit().get());
  thread_modes.grad_enabled = false;
  internal::unmoved_charges.task_bytes = 7;

  Call call = a_->agent->StartCall("b", Read("test.call_back"), {});
  call.reply().Wait();

  EXPECT_EQ(served_on_, std::this_thread::get_id());
  EXPECT_TRUE(grad_enabled_);
  EXPECT_EQ(task_bytes_, 0u);
  EXPECT_FALSE(thread_modes.grad_enabled);
  EXPECT_EQ(internal::unmoved_charges.task_bytes, 7u);
  EXPECT_EQ(MemoryScope::Current(), budget->transit().get());
  thread_modes.grad_enabled = true;
  internal::unmoved_charges.task_bytes = 0;
}

}  // namespace
}  // namespace psd::rpc
