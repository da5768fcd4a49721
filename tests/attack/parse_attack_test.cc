// Messages of few bytes that would take many times as much memory, and answers that nobody reads.
//
//   bazel run -c opt //tests/attack:parse_attack_test -- --rounds=100

#include <grpcpp/create_channel.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/program/program_codec.h"
#include "core/rpc/header.h"
#include "core/rpc/header_codec.h"
#include "core/rpc/message_io.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "proto/psd/v1/worker.pb.h"
#include "tests/attack/memory_attack.h"
#include "tests/attack/raw_session.h"
#include "tests/attack/unary_client.h"
#include "tests/client/test_world.h"

namespace psd::attack {
namespace {

using ParseAttackTest = MemoryAttackTest;

TEST_F(ParseAttackTest, RequestsOfManyEmptyNames) {
  constexpr int kCalls = 30, kNames = 2'200'000;
  v1::PullRequest request;
  for (int i = 0; i < kNames; ++i) request.add_names("");
  Repeat([&] {
    UnaryClient client(address());
    for (int i = 0; i < kCalls; ++i) client.Begin(&UnaryClient::Stub::PrepareAsyncPull, request);
    Answers answers;
    client.Await(answers);
    answers.asked_bytes = size_t{kCalls} * kNames * 56;
    EXPECT_EQ(answers.done, 0);
    return answers;
  });
}

// Sends a megabyte that would become a gigabyte if it were decompressed.
TEST_F(ParseAttackTest, CompressedRequests) {
  constexpr int kCalls = 16;
  constexpr size_t kBytes = 200 * kMiB;
  v1::PullRequest request;
  request.add_names(std::string(kBytes, 'x'));
  Repeat([&] {
    UnaryClient client(address());
    Answers answers;
    answers.asked_bytes = kCalls * kBytes;
    for (int i = 0; i < kCalls; ++i) {
      grpc::ClientContext context;
      context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
      v1::PullReply reply;
      const grpc::Status status = client.stub().Pull(&context, request, &reply);
      // The code is UNIMPLEMENTED, or UNAVAILABLE if the answer comes while the request is still
      // being sent.
      EXPECT_FALSE(status.ok());
      answers.refused += !status.ok();
    }
    return answers;
  });
}

// A header is parsed before it is found to break the protocol.
TEST_F(ParseAttackTest, HeadersOfManyEmptyAttachments) {
  constexpr int kSessions = 8;
  constexpr size_t kAttachments = 3'000'000;
  rpc::Header call, many;
  call.method = "call.program";
  many.attachments.resize(kAttachments);
  const std::string attachments = rpc::EncodeHeader(many);
  const auto network = Must(carrier::NewGrpcCarrier({}));
  std::vector<std::unique_ptr<RawSession>> sessions;
  int named = 0;
  Repeat(
      [&] {
        Answers answers;
        answers.asked_bytes = kSessions * kAttachments * 100;
        for (int i = 0; i < kSessions; ++i) {
          sessions.push_back(
              std::make_unique<RawSession>(*network, address(), absl::StrCat("raw", ++named)));
          if (sessions.back()->open()) {
            const absl::Status sent = sessions.back()->Call(/*mutation=*/false, call, attachments);
            EXPECT_TRUE(sent.ok()) << sent;
          }
        }
        for (const auto& session : sessions) {
          if (!session->open()) continue;
          const RawSession::Answers got = session->Await(1);
          answers.done += got.done;
          answers.refused += got.refused;
          EXPECT_EQ(got.done, 0);
        }
        return answers;
      },
      [&] { sessions.clear(); });
  network->Shutdown();
}

TEST_F(ParseAttackTest, ListsOfReadersThatDoNotRead) {
  constexpr int kValues = 1000, kCalls = 1500, kNameBytes = 500;
  const auto attacker = NewAttacker();
  for (int i = 0; i < kValues; ++i) {
    Must(attacker->GetOrCreate(name(), absl::StrCat("list/", i, std::string(kNameBytes, 'n')),
                               Zeros({1})));
  }
  std::optional<UnaryClient> client;
  Answers answers;
  Repeat(
      [&] {
        client.emplace(address());
        v1::ListValuesRequest request;
        request.set_prefix("list/");
        for (int i = 0; i < kCalls; ++i)
          client->Begin(&UnaryClient::Stub::PrepareAsyncList, request);
        answers = Answers{size_t{kCalls} * kValues * kNameBytes};
        return answers;
      },
      [&] {
        client->Await(answers);
        client.reset();
      });
}

// Sends programs that the owner does not know and that wait for a thread because they are not
// light.
TEST_F(ParseAttackTest, DistinctProgramsThatWait) {
  constexpr int kCalls = 1500, kInstructions = 9'000, kElements = 1'000;
  const auto network = Must(carrier::NewGrpcCarrier({}));
  std::optional<RawSession> session;
  int named = 0;
  int64_t distinct = 0;
  Repeat(
      [&] {
        session.emplace(*network, address(), absl::StrCat("raw", ++named));
        Answers answers;
        answers.asked_bytes = size_t{kCalls} * kInstructions * 250;
        EXPECT_TRUE(session->open());
        for (int i = 0; i < kCalls && session->open(); ++i) {
          ProgramBuilder builder;
          auto result = builder.Call("zeros", {},
                                     {{"shape", std::vector<int64_t>{kElements + ++distinct}},
                                      {"dtype", static_cast<int64_t>(DType::kF32)}});
          for (int k = 1; k < kInstructions; ++k) result = builder.Call("mul", {result, result});
          v1::CallTarget target;
          target.set_program(
              program::EncodeProgram(Must(builder.Build({builder.Call("sum", {result})}))));
          rpc::Header call;
          call.method = "call.program";
          call.attachments.push_back(rpc::FieldsAttachment(target));
          if (!session->Call(/*mutation=*/false, call).ok()) break;
        }
        const RawSession::Answers got = session->Await(kCalls);
        EXPECT_TRUE(got.other.ok()) << got.other;
        answers.done = got.done;
        answers.refused = got.refused;
        return answers;
      },
      [&] { session.reset(); });
  network->Shutdown();
}

}  // namespace
}  // namespace psd::attack
