#pragma once

// A shared-memory carrier that listens, for tests with peers of all kinds.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/carrier/shm/shm_factory.h"
#include "tests/core/carrier/recorder.h"

namespace psd::carrier {

// Probes and introductions take a minute, so that no test depends on the time.
class ShmListeningTest : public testing::Test {
 protected:
  ShmListeningTest() {
    options_.keepalive_time = absl::Seconds(60);
    options_.keepalive_timeout = absl::Seconds(60);
    options_.handshake_timeout = absl::Seconds(60);
  }
  void TearDown() override {
    if (carrier_ != nullptr) carrier_->Shutdown();
    for (const auto& recorder : accepted_) recorder->SetLink(nullptr);
  }

  void Listen(const std::string& address = "unix:@") {
    carrier_ = *NewShmCarrier(options_);
    auto bound = carrier_->Listen(address, [this](std::shared_ptr<Link> link) {
      auto recorder = std::make_shared<Recorder>();
      recorder->SetOnMessage(on_message_);
      if (on_message_ != nullptr) recorder->CountOnly();
      recorder->SetLink(std::move(link));
      MutexLock lock(mutex_);
      accepted_.push_back(recorder);
      changed_.NotifyAll();
      return recorder;
    });
    ASSERT_TRUE(bound.ok()) << bound.status();
    address_ = *bound;
  }
  std::shared_ptr<Recorder> Accepted(size_t index) {
    MutexLock lock(mutex_);
    while (accepted_.size() <= index && changed_.WaitFor(mutex_, kPatience)) {
    }
    return accepted_.at(index);
  }
  // Forgets and returns the recorders from number `first` on.
  std::vector<std::shared_ptr<Recorder>> TakeAccepted(size_t first) {
    MutexLock lock(mutex_);
    const auto begin = accepted_.begin() + static_cast<ptrdiff_t>(first);
    std::vector<std::shared_ptr<Recorder>> taken(begin, accepted_.end());
    accepted_.erase(begin, accepted_.end());
    return taken;
  }
  size_t accepted() {
    MutexLock lock(mutex_);
    return accepted_.size();
  }

  // Checks that the carrier still serves an honest peer.
  void ExpectServes() {
    auto recorder = std::make_shared<Recorder>();
    const size_t index = accepted();
    auto link = ConnectAndWait(*carrier_, address_, recorder);
    ASSERT_TRUE(link.ok()) << link.status();
    Message message;
    message.header = "honest";
    ASSERT_TRUE((*link)->Send(message).ok());
    EXPECT_TRUE(Accepted(index)->WaitForMessages(1));
    (*link)->Close();
    EXPECT_TRUE(recorder->WaitForClosed());
    recorder->SetLink(nullptr);
  }

  ShmCarrierOptions options_;
  Recorder::OnMessageHook on_message_;  // for all messages; they are not kept then
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<Recorder>> accepted_;
  std::shared_ptr<Carrier> carrier_;
  std::string address_;
};

}  // namespace psd::carrier
