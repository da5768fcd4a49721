// A start that cannot reach its owners says why, at once or while it waits.

#include <future>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/rpc/rpc_agent.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

// Keeps the messages that a start logs while it waits.
class WaitingLogger : public Logger {
 public:
  bool Enabled(LogLevel) const override { return true; }
  void Log(LogLevel, absl::string_view event, absl::string_view message,
           std::initializer_list<LogField>) override {
    MutexLock lock(mutex_);
    if (event == "owner_awaited") absl::StrAppend(&said_, message, "\n");
  }
  std::string Said() {
    MutexLock lock(mutex_);
    return said_;
  }

 private:
  Mutex mutex_;
  std::string said_ PSD_GUARDED_BY(mutex_);
};

WorkerOptions Options(const std::string& address) {
  WorkerOptions options;
  options.name = "trainer0";
  options.owners = {{"owner0", address}};
  options.logger = NewNullLogger();
  return options;
}

std::string AddressOfNobody() {
  return TestOwner("gone").address().address;
}

TEST(Start, ABadAddressIsRefusedAtOnce) {
  for (const char* address : {"", "127.0.0.1", "owner0.psd", ":7071", "host:0", "host:port",
                              "host:99999", "a b:7071", "::1:7071"}) {
    WorkerOptions options = Options(address);
    options.start_timeout = absl::InfiniteDuration();
    const absl::Status refused = Worker::Start(options).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("owner0"));
  }
}

void ExpectEndsWith(const std::string& address, const std::string& cause) {
  WorkerOptions options = Options(address);
  auto logger = std::make_shared<WaitingLogger>();
  options.logger = logger;
  options.start_timeout = absl::Seconds(10);
  const absl::Status failed = Worker::Start(options).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kDeadlineExceeded) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr(cause));
  ASSERT_TRUE(GetDetail(failed).has_value()) << failed;
  EXPECT_EQ(GetDetail(failed)->worker, "owner0");
  EXPECT_THAT(std::string(failed.message()), HasSubstr(GetDetail(failed)->remedy));
  EXPECT_THAT(GetDetail(failed)->remedy, HasSubstr("address"));
  EXPECT_THAT(logger->Said(), HasSubstr(address));
  EXPECT_THAT(logger->Said(), HasSubstr(cause));
}

TEST(Start, ThatFindsNobodySaysSo) {
  ExpectEndsWith(AddressOfNobody(), "connection refused");
}

TEST(Start, AtAnOwnerThatDrainsSaysSo) {
  std::promise<void> begun, goes_on;
  worker::RuntimeOptions options;
  ASSERT_TRUE(options.functions
                  .Register("late",
                            [&](const services::FunctionCall&, const Values&) {
                              begun.set_value();
                              goes_on.get_future().wait();
                              return absl::StatusOr<Values>(Values{});
                            })
                  .ok());
  TestOwner owner("owner0", std::move(options));
  const auto other = StartTrainer("other", {owner.address()});
  const Future<Values> late = other->RpcAsync("owner0", Function::Registered("late"), {});
  begun.get_future().wait();
  std::thread stops([&owner] { owner.runtime().Shutdown(absl::Hours(1)); });
  while (!absl::IsUnavailable(other->Lookup("owner0", "w").status())) std::this_thread::yield();
  ExpectEndsWith(owner.address().address, "draining");
  goes_on.set_value();
  EXPECT_TRUE(late.Wait().ok()) << late.Wait().status();
  stops.join();
}

// A start without a timeout waits for an owner that is late. It fails at once if the worker can
// never attach to another of its owners.
TEST(Start, ADefiniteErrorDoesNotWaitForAnotherOwner) {
  TestOwner other("other");
  WorkerOptions options = Options(AddressOfNobody());
  options.owners.push_back({"owner1", other.address().address});
  options.start_timeout = absl::ZeroDuration();
  const absl::Status failed = Worker::Start(options).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kFailedPrecondition) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("attaching to owner1"));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("worker other answers"));
}

TEST(Start, ThatWaitsForTheRegistrarSaysSo) {
  worker::RuntimeOptions options;
  options.name = options.registrar = "owner0";
  options.listen = "127.0.0.1:0";
  std::vector<std::shared_ptr<rpc::ServerCall>> unanswered;
  auto owner = Must(worker::Runtime::Create(std::move(options)));
  owner->agent().RegisterMethod({"registrar.join", rpc::MethodKind::kMutation,
                                 rpc::RunsOn::kCarrierThread,
                                 [&](auto call) { unanswered.push_back(std::move(call)); }});
  const std::string address = Must(owner->Start());
  WorkerOptions waiting = Options(address);
  auto logger = std::make_shared<WaitingLogger>();
  waiting.logger = logger;
  waiting.start_timeout = absl::Seconds(8);
  const absl::Status failed = Worker::Start(waiting).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kDeadlineExceeded) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("joining the job through owner0 at"));
  EXPECT_THAT(logger->Said(), HasSubstr("waiting for owner0 at " + address));
  owner->Shutdown(absl::ZeroDuration());
}

TEST(Start, WithANameThatIsNoneSaysSo) {
  ExpectEndsWith(std::string(64, 'a') + ".invalid:7071", "name not found");
}

}  // namespace
}  // namespace psd
