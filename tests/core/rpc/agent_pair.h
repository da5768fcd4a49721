#pragma once

// Two agents on a faulty network, with methods that echo, park, or count the applied calls.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/rpc/rpc_agent.h"
#include "gtest/gtest.h"
#include "tests/core/rpc/agent_fixture.h"

namespace psd::rpc {

using ServerCallPtr = std::shared_ptr<ServerCall>;

// Two workers. b listens, and a knows its address.
class AgentPairTest : public AgentTest {
 protected:
  void SetUp() override {
    a_ = NewWorker("a", 1);
    b_ = NewWorker("b", 1);
    AddEcho(*a_);
    AddEcho(*b_);
    AddEcho(*b_, "test.slow_echo", RunsOn::kExecutor);
    AddPark(*b_, "test.park", MethodKind::kMutation);
    AddPark(*b_, "test.park_read", MethodKind::kRead);
    b_->agent->RegisterMethod(
        {"test.count", MethodKind::kMutation, RunsOn::kExecutor, [this](ServerCallPtr call) {
           if (call->BeginApply()) ++applied_;
           call->Reply(Payload{absl::StrCat(applied_.load()), {}});
         }});
  }
  // Adds a method that parks its calls until the test answers them.
  void AddPark(TestWorker& worker, const std::string& name, MethodKind kind) {
    worker.agent->RegisterMethod({name, kind, RunsOn::kCarrierThread, [this](ServerCallPtr call) {
                                    MutexLock lock(mutex_);
                                    parked_.push_back(std::move(call));
                                    parked_now_.NotifyAll();
                                  }});
  }
  void StartBoth() {
    ASSERT_TRUE(a_->agent->Start("").ok());
    auto address = b_->agent->Start("b:0");
    ASSERT_TRUE(address.ok()) << address.status();
    b_address_ = *address;
    a_->agent->AddPeer("b", b_address_);
  }
  ServerCallPtr TakeParked() {
    MutexLock lock(mutex_);
    while (parked_.empty()) parked_now_.Wait(mutex_);
    ServerCallPtr call = std::move(parked_.back());
    parked_.pop_back();
    return call;
  }
  void TearDown() override {
    {
      MutexLock lock(mutex_);
      parked_.clear();
    }
    a_.reset();
    b_.reset();
  }

  std::unique_ptr<TestWorker> a_, b_;
  std::string b_address_;
  std::atomic<int> applied_{0};
  Mutex mutex_;
  CondVar parked_now_;
  std::vector<ServerCallPtr> parked_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::rpc
