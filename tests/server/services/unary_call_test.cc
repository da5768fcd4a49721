// Where the requests of unary calls are read: large ones on a thread that no connection waits for.

#include "server/services/unary_call.h"

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "core/base/executor.h"
#include "core/base/mutex.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "server/services/raw_messages.h"
#include "tests/server/services/test_service_host.h"

namespace psd::server {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

v1::PullRequest Naming(size_t names) {
  v1::PullRequest request;
  for (size_t i = 0; i < names; ++i) request.add_names("");
  return request;
}

// Each of these names takes two bytes.
constexpr size_t kMostReadHere = kReadHere / 2;

// Answers each pull with one version, the number of its names. Keeps what is to run elsewhere.
class UnaryCallTest : public ::testing::Test {
 protected:
  using Service = v1::ParameterService::WithRawMethod_Pull<v1::ParameterService::Service>;
  using Method = UnaryMethod<v1::PullRequest, v1::PullReply>;

  UnaryCallTest() : host_([this](grpc::ServerBuilder& b) { b.RegisterService(&service_); }) {
    Method pull;
    pull.ask = [this](auto... call) { service_.RequestPull(call...); };
    pull.charge = [this](UnaryCall&, size_t bytes) {
      MutexLock lock(mutex_);
      charged_bytes_ += bytes;
      if (charged_bytes_ <= most_bytes_) return grpc::Status::OK;
      return grpc::Status(StatusCode::RESOURCE_EXHAUSTED, "no memory");
    };
    pull.handle = [](UnaryCall& call, const v1::PullRequest& request, v1::PullReply& reply) {
      reply.add_versions(static_cast<uint64_t>(request.names_size()));
      call.Finish(grpc::Status::OK);
    };
    pull.elsewhere = [this](UnaryCall&, Task task) {
      MutexLock lock(mutex_);
      if (taken_.ok()) tasks_.push_back(std::move(task));
      came_.NotifyAll();
      return taken_;
    };
    ServeUnary(host_, std::move(pull));
    idle_calls_ = host_.calls();
  }

  grpc::Status Pull(size_t names, v1::PullReply* reply) {
    grpc::ClientContext context;
    return v1::ParameterService::NewStub(host_.Connect())->Pull(&context, Naming(names), reply);
  }
  std::future<grpc::Status> Begin(size_t names, v1::PullReply* reply) {
    return std::async(std::launch::async, [this, names, reply] { return Pull(names, reply); });
  }
  Task AwaitTask() {
    MutexLock lock(mutex_);
    while (tasks_.empty()) came_.Wait(mutex_);
    Task task = std::move(tasks_.back());
    tasks_.pop_back();
    return task;
  }

  // Bounds the memory of all requests.
  void Bound(size_t bytes) {
    MutexLock lock(mutex_);
    most_bytes_ = bytes;
  }

  Mutex mutex_;  // leaf
  CondVar came_;
  size_t most_bytes_ PSD_GUARDED_BY(mutex_) = SIZE_MAX;
  size_t charged_bytes_ PSD_GUARDED_BY(mutex_) = 0;
  grpc::Status taken_ PSD_GUARDED_BY(mutex_);
  std::vector<Task> tasks_ PSD_GUARDED_BY(mutex_);
  Service service_;
  TestServiceHost host_;
  int idle_calls_ = 0;  // calls that the server has requested and that have no client yet
};

TEST_F(UnaryCallTest, WhileALargeRequestWaitsToBeReadOthersAreAnswered) {
  v1::PullReply large, small;
  std::future<grpc::Status> answered = Begin(kMostReadHere + 1, &large);
  Task read = AwaitTask();
  EXPECT_TRUE(Pull(kMostReadHere, &small).ok());
  EXPECT_THAT(small.versions(), ::testing::ElementsAre(kMostReadHere));
  read();
  EXPECT_TRUE(answered.get().ok());
  EXPECT_THAT(large.versions(), ::testing::ElementsAre(kMostReadHere + 1));
  host_.AwaitCalls(idle_calls_);
}

TEST_F(UnaryCallTest, ALargeRequestThatNobodyReadsIsAnsweredWithTheReason) {
  {
    MutexLock lock(mutex_);
    taken_ = {StatusCode::RESOURCE_EXHAUSTED, "the queue is full"};
  }
  v1::PullReply reply;
  const grpc::Status status = Pull(kMostReadHere + 1, &reply);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("the queue is full"));
  host_.AwaitCalls(idle_calls_);
}

TEST_F(UnaryCallTest, ALargeRequestForWhichThereIsNoMemoryDoesNotWait) {
  Bound(kReadHere);
  v1::PullReply reply;
  EXPECT_EQ(Pull(kMostReadHere + 1, &reply).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  MutexLock lock(mutex_);
  EXPECT_TRUE(tasks_.empty());
}

// Its bytes count once: they are charged for before it waits.
TEST_F(UnaryCallTest, ALargeRequestIsChargedForWhatItTakes) {
  constexpr size_t kNames = kMostReadHere + 1;
  grpc::ByteBuffer bytes;
  ASSERT_TRUE(ToBytes(Naming(kNames), bytes).ok());
  Bound(MemoryOf<v1::PullRequest>(bytes));
  v1::PullReply reply;
  std::future<grpc::Status> answered = Begin(kNames, &reply);
  AwaitTask()();
  EXPECT_TRUE(answered.get().ok());
  host_.AwaitCalls(idle_calls_);
}

TEST_F(UnaryCallTest, ALargeRequestThatWouldTakeTooMuchMemoryWhenItIsParsedIsNotParsed) {
  Bound(2 * kReadHere);
  v1::PullReply reply;
  std::future<grpc::Status> answered = Begin(kMostReadHere + 1, &reply);
  AwaitTask()();
  EXPECT_EQ(answered.get().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  host_.AwaitCalls(idle_calls_);
}

TEST_F(UnaryCallTest, ALargeRequestWhoseClientHasGoneIsReadAndForgotten) {
  grpc::ClientContext context;
  v1::PullReply reply;
  std::future<grpc::Status> answered = std::async(std::launch::async, [&] {
    return v1::ParameterService::NewStub(host_.Connect())
        ->Pull(&context, Naming(kMostReadHere + 1), &reply);
  });
  Task read = AwaitTask();
  context.TryCancel();
  EXPECT_EQ(answered.get().error_code(), StatusCode::CANCELLED);
  read();
  host_.AwaitCalls(idle_calls_);
}

}  // namespace
}  // namespace psd::server
