// Peers make an owner hold ten times its container limit and more, while another client trains.
//
//   bazel run -c opt //tests/attack:memory_attack_test -- --rounds=100 --small=2000000
//
// repeats each attack, makes that many small objects in attacks that consist of small objects, and
// prints a line about every round; --gtest_filter chooses one.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "core/carrier/frame.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/program/program_codec.h"
#include "core/rpc/message_io.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "proto/psd/v1/worker.pb.h"
#include "tests/attack/memory_attack.h"
#include "tests/attack/raw_session.h"
#include "tests/attack/unary_client.h"
#include "tests/client/test_world.h"
#include "tests/core/carrier/raw_peer.h"

namespace psd::attack {
namespace {

// ---------------------------------------------------------------- the unary service

// A value of 32 MiB that is dropped with the handle.
class LargeValue {
 public:
  LargeValue(Worker& worker, const std::string& owner, int64_t mebibytes)
      : worker_(worker), owner_(owner) {
    Must(worker_.GetOrCreate(owner_, "large", Zeros({mebibytes << 18})));
  }
  ~LargeValue() { EXPECT_TRUE(worker_.Drop(owner_, "large").ok()); }

 private:
  Worker& worker_;
  const std::string owner_;
};

TEST_F(MemoryAttackTest, PullsThatNameOneValueSixtyTimes) {
  constexpr int kCalls = 4, kTimes = 60, kMebibytes = 32;
  const auto attacker = NewAttacker();
  const LargeValue large(*attacker, name(), kMebibytes);
  Repeat([&] {
    UnaryClient client(address());
    v1::PullRequest request;
    for (int i = 0; i < kTimes; ++i) request.add_names("large");
    for (int i = 0; i < kCalls; ++i) client.Begin(&UnaryClient::Stub::PrepareAsyncPull, request);
    Answers answers;
    client.Await(answers);
    answers.asked_bytes = kCalls * kTimes * kMebibytes * kMiB;
    return answers;
  });
}

TEST_F(MemoryAttackTest, PullsOfReadersThatDoNotRead) {
  constexpr int kCalls = 60, kMebibytes = 60;
  const auto attacker = NewAttacker();
  const LargeValue large(*attacker, name(), kMebibytes);
  std::optional<UnaryClient> client;
  Answers answers;
  Repeat(
      [&] {
        client.emplace(address());
        v1::PullRequest request;
        request.add_names("large");
        for (int i = 0; i < kCalls; ++i)
          client->Begin(&UnaryClient::Stub::PrepareAsyncPull, request);
        answers = Answers{kCalls * kMebibytes * kMiB};
        return answers;
      },
      [&] {
        client->Await(answers);
        client.reset();
      });
}

TEST_F(MemoryAttackTest, SessionsOfTheUnaryServiceWithContexts) {
  constexpr int kContexts = 4;
  const int count = absl::GetFlag(FLAGS_small);
  std::optional<UnaryClient> client;
  std::vector<uint64_t> sessions;
  Repeat(
      [&] {
        client.emplace(address());
        Answers answers;
        for (int i = 0; i < count; ++i) {
          v1::OpenSessionRequest request;
          request.set_client("attacker");
          v1::OpenSessionReply reply;
          grpc::ClientContext context;
          const grpc::Status opened = client->stub().OpenSession(&context, request, &reply);
          answers.Count(opened);
          if (opened.ok()) sessions.push_back(reply.session());
        }
        for (const uint64_t session : sessions) {
          for (int i = 1; i <= kContexts; ++i) {
            v1::NewContextRequest request;
            request.mutable_header()->set_session(session);
            request.mutable_header()->set_sequence(static_cast<uint64_t>(i));
            client->Begin(&UnaryClient::Stub::PrepareAsyncNewContext, request);
          }
        }
        client->Await(answers);
        return answers;
      },
      [&] {
        for (const uint64_t session : sessions) {
          v1::CloseSessionRequest request;
          request.set_session(session);
          client->Begin(&UnaryClient::Stub::PrepareAsyncCloseSession, request);
        }
        sessions.clear();
        Answers ignored;
        client->Await(ignored);
        client.reset();
      });
}

TEST_F(MemoryAttackTest, UnaryCallsAllAtOnce) {
  constexpr int kCalls = 30'000;
  Repeat([&] {
    UnaryClient client(address());
    for (int i = 0; i < kCalls; ++i)
      client.Begin(&UnaryClient::Stub::PrepareAsyncList, v1::ListValuesRequest());
    Answers answers;
    client.Await(answers);
    return answers;
  });
}

// ---------------------------------------------------------------- frames

std::string Wire(carrier::FrameEncoder& frames) {
  std::string wire;
  for (const Buffer& part : frames.Take()) wire.append(part.view().data(), part.size());
  return wire;
}

TEST_F(MemoryAttackTest, AnnouncedHeadersOfSixteenMebibytes) {
  constexpr size_t kHeaders = 210, kHeaderBytes = 16 * kMiB;
  const std::string method = "/psd.v1.Worker/Exchange";
  std::optional<carrier::RawPeer> control, bulk;
  Repeat(
      [&] {
        carrier::FrameEncoder frames;
        frames.Hello({});
        control.emplace(address(), method);
        control->Send(Wire(frames));
        carrier::HelloFrame hello;
        hello.role = carrier::StreamRole::kBulk;
        frames.Hello(hello);
        carrier::Message message;
        message.header.assign(kHeaderBytes, 'h');
        for (size_t i = 1; i <= kHeaders; ++i)
          frames.Announce({i, carrier::kMinPieceBytes, carrier::ShapeOf(message)});
        bulk.emplace(address(), method);
        bulk->Send(Wire(frames));
        for (size_t i = 1; i <= 20; ++i) {
          carrier::PieceCursor cursor;
          frames.Piece(i, message, carrier::kMinPieceBytes, &cursor);
          bulk->Send(Wire(frames));
        }
        return Answers{kHeaders * kHeaderBytes};
      },
      [&] {
        bulk.reset();
        control.reset();
      });
}

// ---------------------------------------------------------------- contexts

TEST_F(MemoryAttackTest, PushedGradientsOfSixteenMebibytes) {
  constexpr int kGradients = 210, kMebibytes = 16;
  const auto attacker = NewAttacker();
  const Tensor gradient = Must(Tensor::Zeros({kMebibytes << 18}, DType::kF32));
  CreateOptions options;
  options.requires_grad = true;
  const RRef parameter =
      Must(attacker->GetOrCreate(name(), "g", Zeros({kMebibytes << 18}), options));
  EXPECT_TRUE(attacker->SetDefaultTimeout(absl::Milliseconds(300)).ok());
  std::vector<Context> contexts;
  Repeat(
      [&] {
        Answers answers;
        answers.asked_bytes = size_t{kGradients} * kMebibytes * kMiB;
        for (int i = 0; i < kGradients; ++i) contexts.push_back(Must(attacker->NewContext()));
        std::atomic<int> next{0};
        Mutex mutex;
        std::vector<std::thread> threads;
        for (int t = 0; t < 16; ++t) {
          threads.emplace_back([&] {
            for (int i = next++; i < kGradients; i = next++) {
              const absl::Status pushed = contexts[i].PushGradient(parameter, gradient, 0);
              MutexLock lock(mutex);
              answers.Count(pushed);
            }
          });
        }
        for (std::thread& thread : threads) thread.join();
        return answers;
      },
      [&] { contexts.clear(); });
}

// A chain of products, each of which keeps its arguments for the backward pass.
Function History(int64_t elements, int products) {
  ProgramBuilder builder;
  const ProgramBuilder::Ref x = builder.Input();
  const ProgramBuilder::Ref zeros = builder.Call(
      "zeros", {},
      {{"shape", std::vector<int64_t>{elements}}, {"dtype", static_cast<int64_t>(DType::kF32)}});
  ProgramBuilder::Ref product = builder.Call("add", {x, zeros});
  for (int i = 0; i < products; ++i) product = builder.Call("mul", {product, product});
  return Function(Must(builder.Build({builder.Call("sum", {product})})));
}

TEST_F(MemoryAttackTest, HistoriesOfProgramsInContexts) {
  constexpr int kCalls = 8, kElements = 15'000, kProducts = 9'000;
  const auto attacker = NewAttacker();
  const RRef scalar = MakeParameter(*attacker, name(), "scalar", Tensor::Of<float>({1}, {1.0F}));
  std::vector<Context> contexts;
  Repeat(
      [&] {
        Answers answers;
        answers.asked_bytes = size_t{kCalls} * kProducts * kElements * sizeof(float);
        for (int i = 0; i < kCalls; ++i) {
          contexts.push_back(Must(attacker->NewContext()));
          CallOptions options;
          options.context = &contexts.back();
          answers.Count(
              attacker
                  ->RpcSync(owner_.address().name, History(kElements, kProducts), {scalar}, options)
                  .status());
        }
        return answers;
      },
      [&] { contexts.clear(); });
}

TEST_F(MemoryAttackTest, ManyContexts) {
  const int count = absl::GetFlag(FLAGS_small);
  const auto attacker = NewAttacker();
  const RRef scalar = MakeParameter(*attacker, name(), "scalar", Tensor::Of<float>({1}, {1.0F}));
  std::vector<Context> contexts;
  Repeat(
      [&] {
        Answers answers;
        for (int i = 0; i < count; ++i) {
          contexts.push_back(Must(attacker->NewContext()));
          answers.Count(attacker->ToHere({scalar}, contexts.back()).status());
        }
        return answers;
      },
      [&] { contexts.clear(); });
}

// ---------------------------------------------------------------- programs

// A program whose results are that many zeros, all of which exist before the first is used.
Function Results(int64_t elements, int results) {
  ProgramBuilder builder;
  std::vector<ProgramBuilder::Ref> all;
  for (int i = 0; i < results; ++i) {
    all.push_back(builder.Call(
        "zeros", {},
        {{"shape", std::vector<int64_t>{elements}}, {"dtype", static_cast<int64_t>(DType::kF32)}}));
  }
  ProgramBuilder::Ref sum = all[0];
  for (int i = 1; i < results; ++i) sum = builder.Call("add", {sum, all[i]});
  return Function(Must(builder.Build({builder.Call("sum", {sum})})));
}

class ProgramAttackTest : public MemoryAttackTest {
 protected:
  void Run(int calls, int64_t elements, int results) {
    const auto attacker = NewAttacker();
    const Function program = Results(elements, results);
    Repeat([&] {
      Answers answers;
      answers.asked_bytes = static_cast<size_t>(calls * results * elements) * sizeof(float);
      std::vector<Future<Values>> running;
      for (int i = 0; i < calls; ++i) running.push_back(attacker->RpcAsync(name(), program, {}));
      for (const auto& call : running) answers.Count(call.Wait().status());
      return answers;
    });
  }
};

TEST_F(ProgramAttackTest, SevenResultsOfHalfTheBudget) {
  Run(4, int64_t{32} << 20, 7);
}
TEST_F(ProgramAttackTest, ManyResultsOfLessThanSixtyFourKibibytes) {
  Run(16, 15'000, 4'000);
}

// ---------------------------------------------------------------- remembered answers

TEST_F(MemoryAttackTest, AnswersThatAreNeverAcknowledged) {
  constexpr int kSessions = 20, kCalls = 3000, kElements = 14'000;
  ProgramBuilder builder;
  const ProgramBuilder::Ref result = builder.Call(
      "zeros", {},
      {{"shape", std::vector<int64_t>{kElements}}, {"dtype", static_cast<int64_t>(DType::kF32)}});
  v1::CallTarget target;
  target.set_program(program::EncodeProgram(Must(builder.Build({result}))));
  rpc::Header call;
  call.method = "call.run";
  call.attachments.push_back(rpc::FieldsAttachment(target));
  const auto network = Must(carrier::NewGrpcCarrier({}));
  std::vector<std::unique_ptr<RawSession>> sessions;
  int named = 0;
  Repeat(
      [&] {
        Answers answers;
        answers.asked_bytes = size_t{kSessions} * kCalls * kElements * sizeof(float);
        for (int i = 0; i < kSessions; ++i) {
          sessions.push_back(
              std::make_unique<RawSession>(*network, address(), absl::StrCat("raw", ++named)));
          if (!sessions.back()->open()) {
            answers.refused += kCalls;
            continue;
          }
          for (int j = 0; j < kCalls; ++j) {
            if (!sessions.back()->Call(/*mutation=*/true, call).ok()) break;
          }
          const RawSession::Answers got = sessions.back()->Await(kCalls);
          EXPECT_TRUE(got.other.ok()) << got.other;
          answers.done += got.done;
          answers.refused += got.refused;
        }
        return answers;
      },
      [&] { sessions.clear(); });
  network->Shutdown();
}

// ---------------------------------------------------------------- small objects

TEST_F(MemoryAttackTest, ManyTinyValues) {
  const int count = absl::GetFlag(FLAGS_small);
  std::unique_ptr<Worker> attacker;
  std::vector<RRef> values;
  const Function one(Zeros({1}));
  Repeat(
      [&] {
        attacker = NewAttacker();
        Answers answers;
        for (int i = 0; i < count; ++i) {
          values.push_back(Must(attacker->Remote(name(), one, {})));
          if (values.size() % 500 == 0) answers.Count(attacker->ToHere({values.back()}).status());
        }
        return answers;
      },
      [&] {
        values.clear();
        EXPECT_TRUE(attacker->Shutdown().ok());
      });
}

}  // namespace
}  // namespace psd::attack
