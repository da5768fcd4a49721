#include "core/rpc/declared_method.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/rpc/rpc_agent.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/worker.pb.h"
#include "tests/core/fake_rpc.h"

namespace psd::rpc {
namespace {

constexpr Declared<v1::NameRequest, v1::AssignReply> kSync{
    {"test.sync", MethodKind::kRead, RunsOn::kCarrierThread}};
constexpr Declared<v1::NameRequest, Unit> kDone{
    {"test.done", MethodKind::kMutation, RunsOn::kExecutor}};
constexpr Declared<Beside<v1::NameRequest>, Beside<v1::AssignReply>> kLater{
    {"test.later", MethodKind::kMutation, RunsOn::kUserQueue}};
constexpr Declared<Bulk<v1::NameRequest>, Bulk<v1::NameRequest>> kBulk{
    {"test.bulk", MethodKind::kRead, RunsOn::kCarrierThread}};
constexpr Declared<Unit, Contents> kContents{
    {"test.contents", MethodKind::kRead, RunsOn::kCarrierThread}};
constexpr Declared<v1::NameRequest, v1::AssignReply> kSized{
    {"test.sized", MethodKind::kRead, RunsOn::kCarrierThread}};

v1::NameRequest Named(const std::string& name) {
  v1::NameRequest request;
  request.set_name(name);
  return request;
}

v1::AssignReply Version(uint64_t version) {
  v1::AssignReply reply;
  reply.set_version(version);
  return reply;
}

// Keeps tasks until the test runs them, or refuses them.
class HeldExecutor : public Executor {
 public:
  absl::Status Submit(Task task) override {
    if (full) return absl::ResourceExhaustedError("full");
    tasks.push_back(std::move(task));
    return absl::OkStatus();
  }
  bool full = false;
  std::vector<Task> tasks;
};

// Has a method of every kind. The name in a request says how the method answers.
class Service {
 public:
  explicit Service(RpcAgent& agent) {
    Serve(agent, kSync, this, &Service::Sync);
    Serve(agent, kDone, this, &Service::Done);
    Serve(agent, kLater, this, &Service::Later);
    Serve(agent, kBulk, this, &Service::Echo);
    Serve(agent, kContents, this, &Service::TwoParts);
    Serve(agent, kSized, this, &Service::Sized);
  }

  HeldExecutor executor;
  std::vector<Answer<Beside<v1::AssignReply>>> answers;  // of calls that are not answered yet
  int runs = 0;

 private:
  absl::StatusOr<v1::AssignReply> Sync(const CallPtr&, v1::NameRequest request) {
    ++runs;
    if (request.name() == "bad") return absl::NotFoundError("nobody is called bad");
    return Version(request.name().size());
  }
  absl::Status Done(const CallPtr&, v1::NameRequest request) {
    return request.name() == "bad" ? absl::NotFoundError("nobody is called bad") : absl::OkStatus();
  }
  absl::Status Later(const Answer<Beside<v1::AssignReply>>& answer,
                     Beside<v1::NameRequest> request) {
    if (request.message.name() == "bad") return absl::NotFoundError("nobody is called bad");
    answers.push_back(answer);
    return absl::OkStatus();
  }
  absl::StatusOr<Bulk<v1::NameRequest>> Echo(const CallPtr&, Bulk<v1::NameRequest> request) {
    return request;
  }
  absl::StatusOr<Contents> TwoParts(const CallPtr&, Unit) {
    return Contents{{"header", {}}, {{7, "attached"}}};
  }
  absl::Status Sized(const Answer<v1::AssignReply>& answer, v1::NameRequest request) {
    const bool light = request.name() != "heavy";
    if (request.name() == "bad") {
      RunBySize(executor, light, answer, [] { return absl::NotFoundError("nobody"); });
      return absl::OkStatus();
    }
    RunBySize(executor, light, answer,
              []() -> absl::StatusOr<v1::AssignReply> { return Version(5); });
    return absl::OkStatus();
  }
};

class DeclaredMethodTest : public ::testing::Test {
 protected:
  // Sends the request and waits for the reply.
  template <typename RequestType, typename ReplyType, typename Sent>
  auto Call(const Declared<RequestType, ReplyType>& method, const Sent& request) {
    auto reply = Ask(caller_, method, {"callee"}, request, {});
    network_.RunUntil(reply);
    return reply.Wait();
  }

  psd::testing::FakeNetwork network_;
  psd::testing::FakeAgent caller_{network_, {"caller", 1}};
  psd::testing::FakeAgent callee_{network_, {"callee", 2}};
  Service service_{callee_};
};

TEST_F(DeclaredMethodTest, AFunctionReturnsTheReplyOrTheError) {
  auto reply = Call(kSync, Named("four"));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->version(), 4);
  EXPECT_EQ(Call(kSync, Named("bad")).status(), absl::NotFoundError("nobody is called bad"));
}

TEST_F(DeclaredMethodTest, ARequestThatCannotBeParsedIsAnsweredAndNotServed) {
  Request request;
  request.payload.header = "\xff";
  EXPECT_EQ(Call(kSync, request).status(),
            absl::InvalidArgumentError("test.sync: 1 header bytes are no message of this method; "
                                       "do both workers run compatible versions?"));
  EXPECT_EQ(service_.runs, 0);
}

TEST_F(DeclaredMethodTest, AStatusAnswersAMethodWithoutReply) {
  EXPECT_TRUE(Call(kDone, Named("good")).ok());
  EXPECT_EQ(Call(kDone, Named("bad")).status(), absl::NotFoundError("nobody is called bad"));
}

TEST_F(DeclaredMethodTest, AFunctionMayAnswerLater) {
  auto reply = Ask(caller_, kLater, {"callee"}, Beside<v1::NameRequest>{Named("a")}, {});
  auto failed = Ask(caller_, kLater, {"callee"}, Beside<v1::NameRequest>{Named("b")}, {});
  network_.RunAll();
  EXPECT_FALSE(reply.IsReady());
  ASSERT_EQ(service_.answers.size(), 2u);
  service_.answers[0](Beside<v1::AssignReply>{Version(9)});
  service_.answers[0](absl::InternalError("a second answer"));
  service_.answers[1](absl::AbortedError("dropped meanwhile"));
  network_.RunAll();
  ASSERT_TRUE(reply.IsReady());
  ASSERT_TRUE(reply.Wait().ok()) << reply.Wait().status();
  EXPECT_EQ(reply.Wait()->message.version(), 9);
  ASSERT_TRUE(failed.IsReady());
  EXPECT_EQ(failed.Wait().status(), absl::AbortedError("dropped meanwhile"));
}

TEST_F(DeclaredMethodTest, AnErrorThatAFunctionReturnsIsTheAnswer) {
  EXPECT_EQ(Call(kLater, Beside<v1::NameRequest>{Named("bad")}).status(),
            absl::NotFoundError("nobody is called bad"));
  EXPECT_EQ(Call(kLater, Request{}).status(),
            absl::InvalidArgumentError("test.later: the request has no fields"));
  EXPECT_TRUE(service_.answers.empty());
}

TEST_F(DeclaredMethodTest, ABulkMessageIsTheOnlyBuffer) {
  const std::string name(100'000, 'x');
  auto reply = Call(kBulk, Bulk<v1::NameRequest>{Named(name)});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->message.name(), name);
  for (const size_t buffers : {0, 2}) {
    Request request;
    for (size_t i = 0; i < buffers; ++i)
      request.payload.buffers.push_back(Buffer::FromString("some"));
    EXPECT_EQ(Call(kBulk, request).status(),
              absl::InvalidArgumentError("test.bulk: one buffer is expected"));
  }
}

TEST_F(DeclaredMethodTest, TheCallerGetsTheWholeReplyOfContents) {
  auto reply = Call(kContents, Unit{});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->payload.header, "header");
  ASSERT_NE(reply->attachment(7), nullptr);
  EXPECT_EQ(*reply->attachment(7), "attached");
  EXPECT_EQ(reply->callee.name, "callee");
}

TEST_F(DeclaredMethodTest, HeavyWorkGoesToTheExecutor) {
  EXPECT_TRUE(Call(kSized, Named("light")).ok());
  EXPECT_EQ(Call(kSized, Named("bad")).status(), absl::NotFoundError("nobody"));
  EXPECT_TRUE(service_.executor.tasks.empty());

  auto reply = Ask(caller_, kSized, {"callee"}, Named("heavy"), {});
  network_.RunAll();
  EXPECT_FALSE(reply.IsReady());
  ASSERT_EQ(service_.executor.tasks.size(), 1u);
  service_.executor.tasks[0]();
  network_.RunAll();
  ASSERT_TRUE(reply.IsReady());
  EXPECT_EQ(reply.Wait()->version(), 5);

  service_.executor.full = true;
  EXPECT_EQ(Call(kSized, Named("heavy")).status(), absl::ResourceExhaustedError("full"));
}

TEST_F(DeclaredMethodTest, TheRequestCarriesTheKindAndTheDestination) {
  std::vector<Request> sent;
  network_.SetFilter([&](const std::string&, const std::string&, const Request& request) {
    sent.push_back(request);
    return absl::OkStatus();
  });
  EXPECT_TRUE(Call(kSync, Named("a")).ok());
  auto bound = Ask(caller_, kDone, {"callee", 2, true}, Named("b"), {});
  network_.RunUntil(bound);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].method, "test.sync");
  EXPECT_EQ(sent[0].kind, MethodKind::kRead);
  EXPECT_EQ(sent[0].only_incarnation, 0);
  EXPECT_FALSE(sent[0].session_bound);
  EXPECT_EQ(sent[1].method, "test.done");
  EXPECT_EQ(sent[1].kind, MethodKind::kMutation);
  EXPECT_EQ(sent[1].only_incarnation, 2);
  EXPECT_TRUE(sent[1].session_bound);
}

// Such as one in a context of the callee's former life, for a reference to a value of this one.
TEST_F(DeclaredMethodTest, ARequestForTwoIncarnationsIsNotSent) {
  Request request;
  request.only_incarnation = 1;
  const absl::Status refused =
      Ask(caller_, kContents, {"callee", 2}, std::move(request), {}).Wait().status();
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  for (const Incarnation life : {1, 2}) {
    EXPECT_NE(refused.message().find(IncarnationToString(life)), std::string::npos) << refused;
  }
  EXPECT_EQ(network_.Count("test.contents"), 0);
}

TEST(BulkTest, MoreBytesThanCanBeParsedAreRefusedUnread) {
  const std::byte unread[1] = {};
  Reply reply;
  reply.payload.buffers.push_back(Buffer(nullptr, unread, size_t{1} << 31));
  EXPECT_EQ(
      Wire<Bulk<v1::NameRequest>>::ParseReply(reply, "test.bulk").status(),
      absl::InvalidArgumentError("test.bulk: 2147483648 bytes; a message has at most 2147483647"));
}

// A call that was cancelled before it took effect.
class CancelledCall : public ServerCall {
 public:
  const PeerInfo& caller() const override { return caller_; }
  uint64_t session_epoch() const override { return 1; }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  const std::string& method() const override { return method_; }
  Payload& payload() override { return payload_; }
  const std::string* attachment(uint32_t) const override { return nullptr; }
  absl::Status Charge(size_t) override { return absl::OkStatus(); }
  void ForgetMessage() override {}
  bool cancelled() const override { return true; }
  void OnCancel(Task) override {}
  bool BeginApply() override { return false; }
  void OnAnswerDropped(Task) override {}
  void Reply(absl::StatusOr<Payload>, std::vector<Attachment>) override {}

 private:
  const PeerInfo caller_{"caller", 1};
  const std::string method_ = "test.done";
  Payload payload_;
};

TEST(BeginApplyTest, ACancelledMutationNamesItsMethod) {
  CancelledCall call;
  EXPECT_EQ(BeginApply(call), absl::CancelledError("cancelled before test.done changed anything"));
}

}  // namespace
}  // namespace psd::rpc
