// The health service as its clients see it. None of its calls stays open when the client is gone.

#include "server/services/health_service.h"

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/grpc_health/health.grpc.pb.h"
#include "tests/server/services/test_service_host.h"

namespace psd::server {
namespace {

using grpc::StatusCode;
using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;

HealthCheckRequest About(const std::string& service) {
  HealthCheckRequest request;
  request.set_service(service);
  return request;
}

// Calls `method` with `request`.
grpc::Status Send(const TestServiceHost& host, const std::string& method,
                  const std::string& request) {
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const grpc::Slice bytes(request);
  grpc::ByteBuffer reply;
  grpc::Status status;
  grpc::GenericStub stub(host.Connect());
  auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&bytes, 1), &queue);
  call->StartCall();
  call->Finish(&reply, &status, nullptr);
  queue.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) {
  }
  return status;
}

// Calls `method` with bytes that are not a request.
grpc::Status SendRubbish(const TestServiceHost& host, const std::string& method) {
  return Send(host, method, "\xff\xff\xff\xff");
}

// The client side of a Watch call.
class Watcher {
 public:
  Watcher(const TestServiceHost& host, const std::string& service)
      : stub_(Health::NewStub(host.Connect())), reader_(stub_->Watch(&context_, About(service))) {}

  // Returns the next status, or -1 if the stream has ended.
  int Next() {
    HealthCheckResponse response;
    return reader_->Read(&response) ? response.status() : -1;
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status Finish() { return reader_->Finish(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<Health::Stub> stub_;
  std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader_;
};

class HealthServiceTest : public ::testing::Test {
 protected:
  HealthServiceTest() : host_([this](grpc::ServerBuilder& b) { health_.Register(b); }) {
    health_.SetServing("", true);
    health_.Serve(host_);
    idle_calls_ = host_.calls();
  }

  grpc::Status Check(const std::string& service, HealthCheckResponse* response) {
    grpc::ClientContext context;
    return Health::NewStub(host_.Connect())->Check(&context, About(service), response);
  }

  HealthService health_;
  TestServiceHost host_;
  int idle_calls_ = 0;  // calls that the server has requested and that have no client yet
};

TEST_F(HealthServiceTest, CheckAnswersWhatWasSetLast) {
  HealthCheckResponse response;
  ASSERT_TRUE(Check("", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  health_.SetServing("", false);
  ASSERT_TRUE(Check("", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  host_.AwaitCalls(idle_calls_);
}

TEST_F(HealthServiceTest, CheckOfAnUnknownServiceNamesIt) {
  HealthCheckResponse response;
  grpc::Status status = Check("no.such.Service", &response);
  EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("'no.such.Service'"));
}

TEST_F(HealthServiceTest, CheckOfAHugeNameIsAnsweredBriefly) {
  HealthCheckResponse response;
  grpc::Status status = Check(std::string(1 << 20, '\n'), &response);
  EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_LT(status.error_message().size(), 2000u);
}

TEST_F(HealthServiceTest, AWatcherSeesThePresentStateAndEveryChange) {
  Watcher watcher(host_, "");
  EXPECT_EQ(watcher.Next(), HealthCheckResponse::SERVING);
  health_.SetServing("", false);
  EXPECT_EQ(watcher.Next(), HealthCheckResponse::NOT_SERVING);
  health_.SetServing("", true);
  EXPECT_EQ(watcher.Next(), HealthCheckResponse::SERVING);
}

TEST_F(HealthServiceTest, AnUnknownServiceMayBecomeKnown) {
  Watcher watcher(host_, "late.Service");
  EXPECT_EQ(watcher.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  health_.SetServing("other.Service", true);
  health_.SetServing("late.Service", true);
  EXPECT_EQ(watcher.Next(), HealthCheckResponse::SERVING);
}

TEST_F(HealthServiceTest, AWatcherThatCancelsIsGone) {
  Watcher watcher(host_, "");
  EXPECT_EQ(watcher.Next(), HealthCheckResponse::SERVING);
  host_.AwaitCalls(idle_calls_ + 1);
  watcher.Cancel();
  EXPECT_EQ(watcher.Finish().error_code(), StatusCode::CANCELLED);
  host_.AwaitCalls(idle_calls_);
  health_.SetServing("", false);  // has no watcher to notify
}

TEST_F(HealthServiceTest, AWatcherWhoseConnectionEndsIsGone) {
  {
    Watcher watcher(host_, "");
    EXPECT_EQ(watcher.Next(), HealthCheckResponse::SERVING);
  }
  host_.AwaitCalls(idle_calls_);
}

TEST_F(HealthServiceTest, RubbishIsRefusedAndServiceGoesOn) {
  EXPECT_FALSE(SendRubbish(host_, "/grpc.health.v1.Health/Check").ok());
  EXPECT_FALSE(SendRubbish(host_, "/grpc.health.v1.Health/Watch").ok());
  host_.AwaitCalls(idle_calls_);
  HealthCheckResponse response;
  EXPECT_TRUE(Check("", &response).ok());
  Watcher watcher(host_, "");
  EXPECT_EQ(watcher.Next(), HealthCheckResponse::SERVING);
}

// Two bytes of an unknown field take sixteen in memory.
TEST_F(HealthServiceTest, ARequestThatWouldTakeMuchMemoryIsNotParsed) {
  std::string bytes;
  for (int i = 0; i < 1'000'000; ++i) bytes += "\x10\x01";
  for (const char* method : {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}) {
    const grpc::Status status = Send(host_, method, bytes);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("bytes of memory"));
  }
  host_.AwaitCalls(idle_calls_);
}

TEST_F(HealthServiceTest, TooLongANameCannotBeWatched) {
  Watcher watcher(host_, std::string(HealthWatches::kMaxServiceBytes + 1, 'x'));
  EXPECT_EQ(watcher.Next(), -1);
  EXPECT_EQ(watcher.Finish().error_code(), StatusCode::INVALID_ARGUMENT);
  host_.AwaitCalls(idle_calls_);
}

TEST_F(HealthServiceTest, AShutdownEndsOpenWatchesByItself) {
  Watcher idle(host_, "");
  Watcher unknown(host_, "no.such.Service");
  EXPECT_EQ(idle.Next(), HealthCheckResponse::SERVING);
  EXPECT_EQ(unknown.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  // When this is answered, the writes above are complete on the server's side, too.
  HealthCheckResponse response;
  EXPECT_TRUE(Check("", &response).ok());
  health_.SetServing("", false);
  host_.ShutdownGently();
  EXPECT_EQ(host_.calls(), 0);
  EXPECT_EQ(idle.Next(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(idle.Next(), -1);
  EXPECT_EQ(idle.Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(unknown.Next(), -1);
  EXPECT_EQ(unknown.Finish().error_code(), StatusCode::UNAVAILABLE);
  health_.SetServing("", true);
}

TEST_F(HealthServiceTest, AShutdownThatCancelsLeavesNoCall) {
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (int i = 0; i < 5; ++i) {
    watchers.push_back(std::make_unique<Watcher>(host_, ""));
    EXPECT_EQ(watchers.back()->Next(), HealthCheckResponse::SERVING);
  }
  host_.Shutdown(std::chrono::system_clock::now());
  EXPECT_EQ(host_.calls(), 0);
  for (auto& watcher : watchers) EXPECT_FALSE(watcher->Finish().ok());
}

// States change while clients come and go.
TEST_F(HealthServiceTest, WatchersComeAndGoWhileStatesChange) {
  constexpr int kRounds = 100;
  std::thread setter([this] {
    for (int i = 0; i < 20 * kRounds; ++i) health_.SetServing("", i % 2 == 0);
  });
  for (int i = 0; i < kRounds; ++i) {
    Watcher watcher(host_, "");
    if (i % 2 == 0) {
      EXPECT_NE(watcher.Next(), -1);
    }
    watcher.Cancel();
  }
  setter.join();
  host_.AwaitCalls(idle_calls_);
}

}  // namespace
}  // namespace psd::server
